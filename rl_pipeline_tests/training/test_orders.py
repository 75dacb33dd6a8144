"""What a superior says in words."""

import pytest

from rl_pipeline.training.orders import EXAMPLES, CancelOrder, LoopOrder, Order, StatusOrder, TrainOrder, understood
from rl_pipeline.training.spoken import UnclearSentence


@pytest.mark.parametrize(
    ("sentence", "order"),
    [
        ("What is the status of job manual-1?", StatusOrder("manual-1")),
        ("status of training job Job.7", StatusOrder("Job.7")),
        ("How is job j-1", StatusOrder("j-1")),
        ("Cancel job manual-1.", CancelOrder("manual-1")),
        ("please  stop the training job x", CancelOrder("x")),
        ("How is the training?", LoopOrder()),
        ("What's the status of the training", LoopOrder()),
        (EXAMPLES[0], TrainOrder(EXAMPLES[0])),
    ],
)
def test_a_sentence_is_an_order(sentence: str, order: Order) -> None:
    assert understood(sentence) == order


def test_what_is_no_id_names_no_job() -> None:
    with pytest.raises(UnclearSentence, match="no id of a job"):
        understood("cancel job ../../etc")


@pytest.mark.parametrize("sentence", ["cancel", "cancel everything", "cancel job a and job b", "status", ""])
def test_what_is_no_order_of_these_is_left_to_the_reading_of_trainings(sentence: str) -> None:
    assert understood(sentence) == TrainOrder(sentence)
