"""Which checkpoint was trained from which, however its address was written."""

import pytest

from rl_pipeline.ingestion.ancestry import Ancestor, Ancestry


def made(job_id: str, base_model: str) -> Ancestor:
    return Ancestor(f"{job_id}/final", job_id, f"{job_id}.r1", base_model, f"/models/{job_id}/final")


# Three generations, a sibling of the second, and one from another base.
FAMILY = Ancestry(
    [
        made("one", "small"),
        made("two", "/models/one/final/"),
        made("sibling", "/models/one/final"),
        made("three", "file:///models/two/final"),
        made("stranger", "large"),
    ]
)


@pytest.mark.parametrize(
    ("job", "line"), [("three", ["three", "two", "one"]), ("one", ["one"]), ("stranger", ["stranger"]), ("nobody", [])]
)
def test_a_line_goes_back_to_the_checkpoint_that_was_trained_from_none(job: str, line: list[str]) -> None:
    assert [one.job_id for one in FAMILY.line(job)] == line


@pytest.mark.parametrize(
    ("learnt", "found"),
    [
        ({"one/final"}, {"one/final", "two/final", "sibling/final", "three/final"}),
        ({"two/final", "stranger/final"}, {"two/final", "three/final", "stranger/final"}),
        ({"of-another-table"}, {"of-another-table"}),
    ],
)
def test_what_one_has_learnt_all_have_learnt_that_were_trained_from_it(learnt: set[str], found: set[str]) -> None:
    assert FAMILY.with_descendants(learnt) == found


def test_a_line_that_bites_its_tail_ends() -> None:
    ring = Ancestry([made("one", "/models/two/final"), made("two", "/models/one/final")])
    assert [one.job_id for one in ring.line("one")] == ["one", "two"]
    assert ring.with_descendants({"one/final"}) == {"one/final", "two/final"}
