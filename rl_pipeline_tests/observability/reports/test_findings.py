"""Each rule at its boundary: just below it nothing is found, and what is found says its figures."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rl_pipeline.observability.reports.activity import (
    Arrivals,
    DeploymentChange,
    Rewards,
    Sessions,
    Standing,
    Validation,
)
from rl_pipeline.observability.reports.estimates import Change, Estimate
from rl_pipeline.observability.reports.figures import Figures, Recommended
from rl_pipeline.observability.reports.findings import RULES, Finding, Limits, findings_of
from rl_pipeline.observability.reports.outcomes import GOALS, Outcome
from rl_pipeline.observability.reports.storage import Storage
from rl_pipeline.training.degradation import Sample, ServingModel
from rl_pipeline_tests.observability.reports.figures_of import END, QUIET, day, job, rewards

HOUR = timedelta(hours=1)
STANDING = QUIET.standing
assert STANDING is not None


def found(figures: Figures, limits: Limits | None = None) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings_of(figures, limits or Limits())}


def arrived(unnamed: int = 0, **verdicts: int) -> Arrivals:
    return Arrivals(verdicts, (), unnamed)


def serving(recent: float, count: int = 1000) -> ServingModel:
    return ServingModel("v1", Sample(200, 0.7, 0.01), Sample(count, recent, 0.01))


def opinions(count: int) -> tuple[Outcome, ...]:
    said = Estimate(count, 0.5, 0.05) if count else Estimate()
    return tuple(Outcome(goal, Change(Estimate(), said)) for goal in GOALS)


def waiting(hours: float, **fields: object) -> Standing:
    return replace(STANDING, phase_since=END - hours * HOUR, **fields)


def pace(per_day: float, size: int = 10_000) -> Storage:
    return Storage(size * 100, 100, END, (), per_day)


def test_a_quiet_day_has_no_issue() -> None:
    assert found(QUIET) == {}


BOUNDARIES: list[tuple[str, Figures, Figures, list[str]]] = [
    (
        "messages_were_lost",
        day(arrivals=arrived(accepted=100, lost=1)),
        day(arrivals=arrived(accepted=100, erased=9)),
        ["1 messages"],
    ),
    (
        "many_messages_are_refused",
        day(arrivals=arrived(accepted=179, refused=21)),
        day(arrivals=arrived(accepted=180, refused=20)),
        ["10.5% of 200"],
    ),
    (
        "nothing_is_collected",
        day(arrivals=arrived(), arrivals_before=1),
        day(arrivals=arrived(), arrivals_before=0),
        ["after 1 in"],
    ),
    (
        "the_model_has_become_worse",
        day(performance=serving(0.5999)),
        day(performance=serving(0.61)),
        ["v1 earns 0.600", "0.700", "-0.100"],
    ),
    (
        "rewards_have_fallen",
        day(rewards=rewards(0.649)),
        day(rewards=rewards(0.651)),
        ["0.700", "0.649", "-0.051", "± 0.014"],
    ),
    (
        "trainings_failed",
        day(jobs=(job("failed", "OOM"), job())),
        day(jobs=(job("cancelled"), job())),
        ["1 of 2", "OOM 1", "0 in a row", "job-1: because"],
    ),
    (
        "models_were_refused",
        day(validations=(Validation("job-1", "refuse", ("toxicity",), None),)),
        day(validations=(Validation("job-1", "deploy", (), 0.1),)),
        ["1 of 1", "job-1 (refuse): toxicity"],
    ),
    (
        "models_were_rolled_back",
        day(changes=(DeploymentChange(7, END, "rolled_back", "v2", "high_error_rate", "watchdog"),)),
        day(changes=(DeploymentChange(7, END, "promoted", "v2", "good", "controller"),)),
        ["v2 at 2026-03-10 08:00 UTC by watchdog: high_error_rate"],
    ),
    (
        "sessions_fail",
        day(sessions=(Sessions("v1", 1000, 51, 0, 0),)),
        day(sessions=(Sessions("v1", 1000, 50, 0, 0), Sessions("v2", 49, 49, 0, 0))),
        ["v1 5.1% of 1,000"],
    ),
    (
        "somebody_is_waited_for",
        day(standing=waiting(24, phase="awaiting_approval")),
        day(standing=waiting(23.9, phase="awaiting_approval")),
        ["24 h for an approval"],
    ),
    (
        "another_model_answers",
        day(performance=replace(serving(0.7), version="v0")),
        day(
            performance=replace(serving(0.7), version="v2"),
            standing=replace(STANDING, weights={"v1": 0.9, "v2": 0.1}),
        ),
        ["come from v0", "v1 serves"],
    ),
    (
        "the_stream_fills_up",
        day(storage=pace(33_334)),
        day(storage=pace(33_333)),
        ["1,000,020 messages and 10.0 GB", "1,000,000 and 100 GB"],
    ),
    (
        "few_people_say_anything",
        day(outcomes=opinions(9)),
        day(outcomes=opinions(10)),
        ["9 thumbs or stars for 1,000"],
    ),
    (
        "models_are_not_named",
        day(arrivals=arrived(101, accepted=1000)),
        day(arrivals=arrived(100, accepted=1000)),
        ["101 of 1,000"],
    ),
]


@pytest.mark.parametrize(("rule", "bad", "good", "evidence"), BOUNDARIES, ids=[row[0] for row in BOUNDARIES])
def test_a_rule_finds_what_is_just_beyond_its_boundary(
    rule: str, bad: Figures, good: Figures, evidence: list[str]
) -> None:
    assert set(found(bad)) == {rule}
    assert [part for part in evidence if part not in found(bad)[rule].issue] == []
    assert found(bad)[rule].recommendation
    assert found(good) == {}


def test_every_rule_is_tested_at_its_boundary() -> None:
    assert {rule.__name__ for rule in RULES} == {row[0] for row in BOUNDARIES}


def test_a_tenth_of_a_handful_is_chance() -> None:
    assert found(day(arrivals=arrived(accepted=9, refused=10))) == {}
    assert set(found(day(arrivals=arrived(accepted=10, refused=10)))) == {"many_messages_are_refused"}


def test_a_fall_that_may_be_chance_is_none() -> None:
    assert found(day(rewards=rewards(0.6, error=0.05))) == {}
    assert found(day(rewards=Rewards())) == {}


def test_as_many_failures_in_a_row_as_are_allowed_are_critical() -> None:
    failures = tuple(job("failed", code, name) for code, name in (("OOM", "a"), ("DATA", "b"), ("DATA", "c")))
    finding = found(day(jobs=(job(), *failures)))["trainings_failed"]
    assert (finding.severity, finding.recommendation.split(":")[0]) == ("critical", "DATA")
    assert "3 in a row up to the end; the last, c" in finding.issue
    assert found(day(jobs=(*failures, job())))["trainings_failed"].severity == "warning"
    assert found(day(jobs=failures[:2]), Limits(trainings_in_a_row=2))["trainings_failed"].severity == "critical"


def test_a_rollback_comes_with_what_its_post_mortem_recommends() -> None:
    back = (DeploymentChange(7, END, "rolled_back", "v2", "high_error_rate", "watchdog"),)
    finding = found(day(changes=back, post_mortems=(Recommended("v2", "Retrain it."),)))["models_were_rolled_back"]
    assert finding.recommendation == "v2: Retrain it."


def test_who_is_asked_about_a_model_is_told_how_to_answer() -> None:
    asked = (Validation("job-9", "ask_a_person", ("nothing was probed",), 0.1),)
    assert "job-9: read the report, then `rl-pipeline deployment approve`" in (
        found(day(validations=asked))["models_were_refused"].recommendation
    )


def test_a_freeze_is_told_with_its_reason() -> None:
    assert "a holiday" in found(day(standing=waiting(30, frozen="a holiday")))["somebody_is_waited_for"].issue


def test_a_rollout_that_its_evidence_holds_is_told_at_once() -> None:
    held = replace(STANDING, phase="ramping", waits_for="v2 (fails_only_alone): see", waits_since=END)
    assert "the rollout of v2 (fails_only_alone): see" in found(day(standing=held))["somebody_is_waited_for"].issue


def test_the_stream_may_fill_up_by_size_too() -> None:
    assert found(day(storage=pace(1000, size=4_000_000))).keys() == {"the_stream_fills_up"}
    assert found(day(storage=pace(1000, size=3_333_333))) == {}


def test_the_gravest_comes_first() -> None:
    both = day(outcomes=opinions(0), arrivals=arrived(accepted=1000, lost=1))
    assert [finding.severity for finding in findings_of(both, Limits())] == ["critical", "note"]
