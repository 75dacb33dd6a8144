"""What the candidate would have earned on logged work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import log
from pathlib import Path
from random import Random

import pytest

from rl_pipeline.contracts.trajectory import Sampling
from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.recording import Recorder
from rl_pipeline.training.small_model.building import build_small_model
from rl_pipeline.validation.checkpoint_likelihoods import CheckpointLikelihoods
from rl_pipeline.validation.off_policy import (
    LoggedTrajectory,
    OffPolicyEstimate,
    estimate_off_policy,
    logged_trajectories,
)

# One answer of two tokens, 1 or 2, per task; the first earns its task's value and the second nothing.
LOGGING, CANDIDATE = 0.5, 0.8


@dataclass(frozen=True)
class Known:
    """A policy that says 1 with a known probability."""

    first: float

    def log_likelihoods(self, trajectories: Sequence[LoggedTrajectory]) -> list[float]:
        return [
            sum(log(self.first if turn.completion_token_ids == [1] else 1 - self.first) for turn in one.turns)
            for one in trajectories
        ]


def logged(count: int, seed: int, tasks: int = 50) -> list[LoggedTrajectory]:
    randomness, made = Random(seed), []
    for number in range(count):
        token = 1 if randomness.random() < LOGGING else 2
        turn = Sampling(prompt_token_ids=[9], completion_token_ids=[token], logprobs=[log(0.5)])
        value = 0.2 + 0.8 * (number % tasks) / tasks
        made.append(LoggedTrajectory(str(number % tasks), value if token == 1 else 0.0, [turn], 1.0))
    return made


def truth(policy: float, tasks: int = 50) -> float:
    return policy * sum(0.2 + 0.8 * number / tasks for number in range(tasks)) / tasks


def test_the_policy_that_was_logged_earns_what_was_logged() -> None:
    work = logged(400, seed=1)
    found = estimate_off_policy(work, Known(LOGGING), seed=0)
    mean = sum(one.reward for one in work) / 400
    assert found.effective_sample_size == pytest.approx(400)
    assert found.self_normalised == pytest.approx(mean)
    assert found.logged_mean == pytest.approx(mean)
    assert found.available
    assert found.reason == ""


def test_another_policy_earns_what_it_would_have_earned() -> None:
    found = estimate_off_policy(logged(4000, seed=1), Known(CANDIDATE), seed=0)
    assert found.self_normalised == pytest.approx(truth(CANDIDATE), abs=0.03)
    assert found.doubly_robust == pytest.approx(truth(CANDIDATE), abs=0.03)
    assert found.logged_mean == pytest.approx(truth(LOGGING), abs=0.03)
    assert found.effective_sample_size == pytest.approx(4000 / (0.5 * (1.6**2 + 0.4**2)), rel=0.05)
    assert found.interval is not None
    assert found.interval[0] < truth(CANDIDATE) < found.interval[1]


@pytest.mark.soak
def test_the_interval_covers_the_truth_nearly_as_often_as_it_says(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    times, covered = soak_count(100, 1000), 0
    for seed in range(times):
        interval = estimate_off_policy(logged(400, seed), Known(CANDIDATE), seed=seed).interval
        assert interval is not None
        covered += interval[0] <= truth(CANDIDATE) <= interval[1]
    record_property("off-policy interval covers", covered / times)
    assert covered / times > 0.9


def test_a_candidate_that_moved_far_away_is_said_to_have() -> None:
    turns = [Sampling(prompt_token_ids=[9], completion_token_ids=[1], logprobs=[log(0.5)])] * 40
    work = [LoggedTrajectory(str(n), 1.0, turns[: 1 + n % 40], 1.0) for n in range(200)]
    found = estimate_off_policy(work, Known(0.999), seed=0)
    assert found.available
    assert found.effective_sample_size < 30
    assert found.reason.startswith("weak: only")


def test_the_same_seed_gives_the_same_interval() -> None:
    work = logged(300, seed=2)
    assert estimate_off_policy(work, Known(0.7), seed=4) == estimate_off_policy(work, Known(0.7), seed=4)
    assert estimate_off_policy(work, Known(0.7), seed=4) != estimate_off_policy(work, Known(0.7), seed=5)


@pytest.mark.parametrize("count", [0, 29])
def test_from_too_little_logged_work_it_is_not_available(count: int) -> None:
    found = estimate_off_policy(logged(count, 1), Known(0.5), seed=0, unusable=12)
    assert found == OffPolicyEstimate(
        False,
        f"not available: {count} of {count + 12} logged trajectories have a reward and the log-probabilities of all "
        "their tokens, and an estimate takes 30",
    )
    assert estimate_off_policy(logged(30, 1), Known(0.5), seed=0, unusable=12).available


def test_likelihoods_that_are_no_numbers_are_no_estimate() -> None:
    class Broken:
        def log_likelihoods(self, trajectories: Sequence[LoggedTrajectory]) -> list[float]:
            return [float("nan")] * len(trajectories)

    found = estimate_off_policy(logged(40, 1), Broken(), seed=0)
    assert (found.available, found.reason) == (
        False,
        "not available: the candidate gives likelihoods that are no numbers",
    )


def test_trajectories_of_the_small_model_are_read_as_it_said_them(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rl_pipeline.training.program.generation import play_with_model

    torch.set_num_threads(1)
    directory = build_small_model(tmp_path / "small", demonstrations=32)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    world = CraftingWorld()
    played = play_with_model(
        world, world.tasks(6, seed=1), model, tokenizer, generator=torch.Generator().manual_seed(3), temperature=0.7
    )
    recorded = Recorder(world, "agent", "small", temperature=0.7).record(
        [one.episode for one in played],
        start=datetime(2026, 1, 1, tzinfo=UTC),
        randomness=Random(0),
        samplings=[one.transcript.samplings("v1") for one in played],
    )
    rewards = {str(one.trajectory_id): 1.0 for one in recorded}
    unlogged = recorded[0].model_copy(
        update={"turns": [turn.model_copy(update={"sampling": None}) for turn in recorded[0].turns]}
    )
    work, unusable = logged_trajectories([*recorded, unlogged], rewards)
    assert (len(work), unusable) == (6, 1)
    found = CheckpointLikelihoods(directory, at_once=4).log_likelihoods(work)
    assert found == pytest.approx([one.log_likelihood for one in work], abs=1e-3)
    warmer = [replace(one, temperature=1.3) for one in work]
    assert CheckpointLikelihoods(directory).log_likelihoods(warmer) != pytest.approx(found, abs=1e-3)
    assert logged_trajectories(recorded, {}) == ([], 6)


def test_turns_that_do_not_go_on_from_each_other_are_read_apart() -> None:
    from rl_pipeline.validation.checkpoint_likelihoods import _parts

    def turn(prompt: list[int], said: list[int]) -> Sampling:
        return Sampling(prompt_token_ids=prompt, completion_token_ids=said, logprobs=[0.0] * len(said))

    [whole] = _parts([turn([1, 2], [3]), turn([1, 2, 3, 4], [5, 6])])
    assert (whole.token_ids, whole.turns) == ([1, 2, 3, 4, 5, 6], [-1, -1, 0, -1, 1, 1])
    first, second = _parts([turn([1, 2], [3]), turn([7, 8], [9])])
    assert (first.token_ids, second.token_ids, second.turns) == ([1, 2, 3], [7, 8, 9], [-1, -1, 0])
