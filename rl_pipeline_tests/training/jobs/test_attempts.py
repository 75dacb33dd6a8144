"""The table of retries, class by class."""

import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.contracts import FailureCode
from rl_pipeline.training.jobs.attempts import (
    LIMITS,
    NO_CHANGES,
    GiveUp,
    NextAttempt,
    PlanChanges,
    after_failure,
    apply_changes,
    changes_of,
    outcome_of_stop,
)
from rl_pipeline.training.jobs.job import Attempt
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline_tests.training.job_values import MINUTE, NOW, a_failure, a_plan, an_attempt

ENDED = NOW + MINUTE


def following(*attempts: Attempt) -> NextAttempt:
    verdict = after_failure(attempts)
    assert isinstance(verdict, NextAttempt), verdict
    return verdict


def given_up(*attempts: Attempt) -> str:
    verdict = after_failure(attempts)
    assert isinstance(verdict, GiveUp), verdict
    return verdict.reason


def test_out_of_memory_halves_the_micro_batch_and_keeps_the_global_batch() -> None:
    plan = a_plan(micro_batch=8, accumulation=2)
    after = following(a_failure("OOM", plan=plan))
    assert (after.changes, after.starts_from, after.not_before) == (PlanChanges(halvings=1), "checkpoint", ENDED)
    changed = apply_changes(plan, after.changes)
    assert (changed.optimization.micro_batch, changed.optimization.accumulation) == (4, 4)
    assert changed.global_batch == plan.global_batch == 32
    assert changed.optimization.learning_rate == plan.optimization.learning_rate


def test_out_of_memory_at_one_sequence_goes_on_to_checkpointing_then_offloading_then_gives_up() -> None:
    plan, attempts, changes = a_plan(micro_batch=2, accumulation=1, zero_stage=3, device="cuda"), [], []
    for number in range(1, 5):
        attempts.append(a_failure("OOM", number, plan=plan))
        verdict = after_failure(attempts)
        if isinstance(verdict, GiveUp):
            break
        changes.append(verdict.changes)
        plan = apply_changes(plan, verdict.changes)
    assert changes == [PlanChanges(halvings=1), PlanChanges(gradient_checkpointing=True), PlanChanges(offload=True)]
    assert plan.distribution.offload_optimizer
    assert plan.distribution.offload_parameters
    assert plan.global_batch == 4
    assert "is too much" in given_up(*attempts)


def test_without_deepspeed_or_without_a_gpu_nothing_is_offloaded() -> None:
    plain = a_plan(micro_batch=1, deepspeed=False, processes=1, gradient_checkpointing=True, device="cuda")
    assert apply_changes(plain, PlanChanges(offload=True)) == plain
    for plan in (plain, a_plan(micro_batch=1, gradient_checkpointing=True, zero_stage=3)):
        assert "is too much" in given_up(a_failure("OOM", plan=plan))


def test_without_a_compiler_nothing_is_offloaded_and_the_job_ends_out_of_memory() -> None:
    here = a_plan(micro_batch=1, gradient_checkpointing=True, zero_stage=3, device="cuda", can_compile=False)
    assert "offloading takes a C++ compiler" in given_up(a_failure("OOM", plan=here))
    there = here.model_copy(update={"distribution": here.distribution.model_copy(update={"can_compile": True})})
    decided = following(a_failure("OOM", plan=there)).changes
    assert decided == PlanChanges(offload=True)
    assert apply_changes(here, decided) == here, "and neither is it when that was decided on another machine"


def test_out_of_memory_before_there_was_a_plan_asks_for_fewer_samples() -> None:
    assert "fewer samples" in given_up(a_failure("OOM"))


def test_no_convergence_halves_the_learning_rate_from_the_last_good_checkpoint() -> None:
    plan = a_plan()
    after = following(a_failure("CONVERGENCE", plan=plan))
    assert (after.starts_from, after.not_before) == ("checkpoint", ENDED)
    changed = apply_changes(plan, after.changes)
    assert changed.optimization.learning_rate == pytest.approx(2e-5)
    assert changed.model_copy(update={"optimization": plan.optimization}) == plan


def test_bad_data_makes_a_new_dataset_without_the_rows_that_were_quarantined() -> None:
    after = following(a_failure("DATA", plan=a_plan(), result='{"quarantined": 3}'))
    assert (after.changes, after.starts_from, after.not_before) == (NO_CHANGES, "dataset", ENDED)
    assert "without 3 rows" in after.explanation


def test_bad_data_without_a_row_to_blame_is_checked_anew_once() -> None:
    blameless = [a_failure("DATA", number, plan=a_plan()) for number in (1, 2)]
    assert following(blameless[0]).starts_from == "dataset"
    assert "no row was found to blame" in given_up(*blameless)


def test_trouble_with_the_surroundings_is_waited_out_for_ten_minutes() -> None:
    after = following(a_failure("INFRA", plan=a_plan()))
    assert (after.changes, after.starts_from) == (NO_CHANGES, "checkpoint")
    assert after.not_before == ENDED + timedelta(seconds=600)


def test_trouble_before_there_was_a_dataset_starts_from_the_dataset_again() -> None:
    assert following(a_failure("INFRA")).starts_from == "dataset"


def test_a_hang_is_put_back_into_the_queue() -> None:
    after = following(a_failure("TIMEOUT", plan=a_plan()))
    assert (after.changes, after.starts_from, after.not_before) == (NO_CHANGES, "checkpoint", ENDED + MINUTE)


@pytest.mark.parametrize("code", ["UNKNOWN", None])
def test_what_nobody_knows_is_for_a_person_to_look_at(code: FailureCode | None) -> None:
    assert "a person has to look at its traceback" in given_up(a_failure(code, plan=a_plan()))


@pytest.mark.parametrize("code", [code for code, limit in LIMITS.items() if limit])
def test_each_class_is_tried_again_only_so_often(code: FailureCode) -> None:
    plan = a_plan(micro_batch=2**20)
    failures = [
        a_failure(code, number, plan=plan, result='{"quarantined": 1}') for number in range(1, LIMITS[code] + 2)
    ]
    following(*failures[:-1])
    assert f"no more than {LIMITS[code]} are tried again" in given_up(*failures)


def test_giving_way_and_failures_of_other_classes_do_not_count() -> None:
    others = [a_failure("TIMEOUT", number, plan=a_plan()) for number in range(1, 4)]
    gave_way = an_attempt(4, plan=a_plan()).ended("preempted", ENDED)
    following(*others, gave_way, a_failure("CONVERGENCE", 5, plan=a_plan()))


def test_the_same_failure_gives_the_same_next_attempt_whenever_it_is_asked_for() -> None:
    failure = a_failure("INFRA", plan=a_plan())
    assert after_failure([failure]) == after_failure([failure])


def test_changes_add_up_from_attempt_to_attempt() -> None:
    first = an_attempt(1)
    second = Attempt("job-1", 2, "checkpoint", NOW, PlanChanges(halvings=1, learning_rate_factor=0.5).as_json())
    third = Attempt("job-1", 3, "checkpoint", NOW, PlanChanges(halvings=1, gradient_checkpointing=True).as_json())
    assert changes_of([first]) == NO_CHANGES
    assert changes_of([first, second, third]) == PlanChanges(
        halvings=2, gradient_checkpointing=True, learning_rate_factor=0.5
    )
    assert second.changes == '{"halvings":1,"learning_rate_factor":0.5}'


@given(
    st.integers(1, 300),
    st.integers(1, 64),
    st.integers(0, 12),
    st.booleans(),
    st.booleans(),
    st.floats(0.01, 1.0),
    st.integers(0, 3),
)
def test_no_change_touches_the_global_batch(  # noqa: PLR0917  # hypothesis passes them so
    micro: int, accumulation: int, halvings: int, checkpointing: bool, offload: bool, factor: float, stage: int
) -> None:
    plan = a_plan(micro, accumulation, zero_stage=stage)
    changes = PlanChanges(
        halvings=halvings, gradient_checkpointing=checkpointing, offload=offload, learning_rate_factor=factor
    )
    changed = apply_changes(plan, changes)
    assert changed.global_batch == plan.global_batch
    assert changed.optimization.micro_batch <= max(1, micro >> halvings)
    assert TrainingPlan.model_validate_json(changed.model_dump_json()) == changed


@pytest.mark.parametrize(
    ("state", "canceling", "outcome"),
    [
        ("preempting", True, ("preempted", None)),
        ("running", True, ("cancelled", None)),
        ("cancelling", True, ("cancelled", None)),
        ("cancelling", False, ("cancelled", None)),
        ("running", False, ("failed", "INFRA")),
    ],
    ids=["gives way", "cancelled in the UI", "cancelled by message", "stopped and cancelled", "machine goes down"],
)
def test_an_interrupted_run_knows_what_it_was_interrupted_for(
    state: str, canceling: bool, outcome: tuple[str, str | None]
) -> None:
    assert outcome_of_stop(state, run_is_canceling=canceling) == outcome  # type: ignore[arg-type]


# What trainings are lost by, when they are lost: mostly machines and stores; one failure in twenty is of no known kind.
LOST_BY: dict[FailureCode, float] = {
    "INFRA": 0.40,
    "TIMEOUT": 0.20,
    "OOM": 0.15,
    "CONVERGENCE": 0.10,
    "DATA": 0.10,
    "UNKNOWN": 0.05,
}


def is_completed_in_the_end(chance: random.Random, failing: float, *, tried_again: bool) -> bool:
    plan, attempts = a_plan(micro_batch=8), list[Attempt]()
    while chance.random() < failing:
        code = chance.choices(list(LOST_BY), list(LOST_BY.values()))[0]
        attempts.append(a_failure(code, len(attempts) + 1, plan=plan, result='{"quarantined": 1}'))
        verdict = after_failure(attempts)
        if not tried_again or isinstance(verdict, GiveUp):
            return False
        plan = apply_changes(plan, verdict.changes)
    return True


@pytest.mark.soak
def test_more_than_nine_in_ten_trainings_succeed_though_every_third_attempt_fails(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    trainings, chance = soak_count(1_000, 20_000), random.Random(20260401)
    share = sum(is_completed_in_the_end(chance, 1 / 3, tried_again=True) for _ in range(trainings)) / trainings
    without = sum(is_completed_in_the_end(chance, 1 / 3, tried_again=False) for _ in range(trainings)) / trainings
    record_property("trainings", trainings)
    record_property("share that succeeds", round(share, 4))
    record_property("without another attempt", round(without, 4))
    assert share > 0.9
    assert without < 0.75
