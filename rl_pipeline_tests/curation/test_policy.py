"""What a request's filter comes to, for each algorithm."""

from datetime import UTC, datetime, timedelta

import pytest

from rl_pipeline.curation.policy import CurationPolicy, InvalidFilter
from rl_pipeline_tests.curation.frames import criteria

ASKED_AT = datetime(2026, 3, 26, tzinfo=UTC)


def test_only_imitation_obeys_the_least_reward_without_being_told() -> None:
    assert criteria("sft").least_reward == 0.5
    for algorithm in ("dpo", "ppo", "rloo", "grpo", "reinforce"):
        assert criteria(algorithm).least_reward is None


def test_a_literal_filter_is_obeyed_by_every_algorithm() -> None:
    asked = {"min_reward": 0.6, "literal_filter": True}
    for algorithm in ("sft", "dpo", "ppo", "rloo", "grpo", "reinforce"):
        assert criteria(algorithm, asked).least_reward == 0.6


def test_the_window_is_the_last_thirty_days_before_the_request_unless_it_says_otherwise() -> None:
    assert (criteria().start, criteria().end) == (ASKED_AT - timedelta(days=30), None)
    assert criteria(filters={"last_days": 7}).start == ASKED_AT - timedelta(days=7)
    dated = criteria(filters={"date_range": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-09T00:00:00Z"}})
    assert (dated.start, dated.end) == (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 9, tzinfo=UTC))


def test_what_files_brought_has_no_window_unless_the_request_says_one() -> None:
    assert criteria(source="local", path="here").start is None
    assert criteria(source="s3", path="there", filters={"last_days": 7}).start == ASKED_AT - timedelta(days=7)


def test_a_share_of_nothing_leaves_a_domain_out() -> None:
    asked = criteria(filters={"domain_shares": {"coding": 0.5, "research": 0.5, "general": 0}})
    assert asked.domains == ("coding", "research")
    assert dict(asked.shares) == {"coding": 0.5, "research": 0.5}


def test_shares_count_for_the_domains_that_are_asked_for() -> None:
    asked = criteria(filters={"domain_shares": {"coding": 0.5, "research": 0.5}, "task_domains": ["coding"]})
    assert asked.domains == ("coding",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"domain_shares": {"coding": 0}},
        {"domain_shares": {"coding": 1}, "task_domains": ["research"]},
        {"task_domains": []},
        {"pair_margin": 0},
        {"pair_margin": "much"},
        {"pair_margin": True},
        {"literal_filter": "yes"},
    ],
)
def test_a_filter_that_cannot_be_is_refused_with_its_name(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidFilter, match=next(iter(wrong))):
        criteria(filters=wrong)


def test_the_margin_of_pairs_is_the_requests_or_the_deployments() -> None:
    assert criteria("dpo").pair_margin == 0.1
    assert criteria("dpo", policy=CurationPolicy(pair_margin=0.3)).pair_margin == 0.3
    assert criteria("dpo", {"pair_margin": 0.25}).pair_margin == 0.25


def test_nothing_is_held_out_where_nothing_is_evaluated() -> None:
    assert criteria().holdout == 0.1


def test_the_name_of_the_job_is_no_part_of_what_is_hashed() -> None:
    assert "job_id" not in criteria().hashed()
    assert "allowed" not in CurationPolicy(allowed=frozenset({"a secret that is none"})).hashed()
