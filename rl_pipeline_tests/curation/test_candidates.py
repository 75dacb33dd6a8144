"""What the warehouse offers, and why it does not offer the rest."""

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl

from rl_pipeline.curation.candidates import CANDIDATES, Offer, offered
from rl_pipeline.curation.likeness import near_pairs, without_copies
from rl_pipeline.curation.policy import Criteria, CurationPolicy, criteria_of
from rl_pipeline.ingestion.ledger import ERASED_REVISION
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline_tests.curation.frames import POLICY, request
from rl_pipeline_tests.curation.real_trajectories import real_documents
from rl_pipeline_tests.curation.stored import NOW, STREAM, Attempt, name_of, store, store_rewards
from rl_pipeline_tests.rewards.documents import document, says, user_says


def asked(
    algorithm: Any = "rloo", filters: dict[str, Any] | None = None, watermark: int = 10**9, **rest: Any
) -> Criteria:
    of_now = request(filters, **rest)
    return criteria_of(of_now, job_id="job-1", accepted_at=NOW, algorithm=algorithm, watermark=watermark, policy=POLICY)


def offer(warehouse: Warehouse, algorithm: Any = "rloo", filters: dict[str, Any] | None = None, **rest: Any) -> Offer:
    return offered(warehouse, asked(algorithm, filters, **rest), POLICY)


def ids(offer: Offer) -> set[str]:
    return set(offer.candidates["trajectory_id"])


def one(warehouse: Warehouse, trajectory_id: str) -> dict[str, Any]:
    return offer(warehouse).candidates.row(by_predicate=pl.col("trajectory_id") == trajectory_id, named=True)


def test_an_empty_warehouse_offers_nothing(warehouse: Warehouse) -> None:
    found = offer(warehouse)
    assert (found.candidates.schema, found.candidates.height, found.left_out) == (CANDIDATES, 0, Counter())


def test_every_stored_trajectory_is_a_candidate_or_left_out_for_its_first_reason(warehouse: Warehouse) -> None:
    good, *_ = store(
        warehouse,
        [
            Attempt(reward=0.9),
            Attempt(reward=None),
            Attempt(reward=float("nan")),
            Attempt(reward=0.2),
            Attempt(columns={"turns": 51}),
            Attempt(columns={"subordinate_profile": "hacker"}),
            Attempt(columns={"domain": "writing"}),
            Attempt(columns={"stream_time": NOW - timedelta(days=40)}),
            Attempt(document=document([says("somebody else's", agent="another")])),
        ],
    )
    filters = {"exclude_subordinate_profiles": ["hacker"], "task_domains": ["coding"]}
    found = offer(warehouse, "sft", filters)
    assert ids(found) == {good}
    assert found.left_out == Counter(
        unrewarded=2,
        below_reward=1,
        too_long=1,
        excluded_profile=1,
        other_domain=1,
        outside_window=1,
        nothing_written=1,
    )


def test_the_least_reward_shuts_nobody_out_of_pairs_and_groups(warehouse: Warehouse) -> None:
    store(warehouse, [Attempt(reward=0.1), Attempt(reward=0.9)])
    assert [offer(warehouse, algorithm).candidates.height for algorithm in ("sft", "dpo", "rloo")] == [1, 2, 2]
    assert offer(warehouse, "ppo", {"literal_filter": True}).left_out == Counter(below_reward=1)


def test_normalised_rewards_count_where_they_are_asked_for(warehouse: Warehouse) -> None:
    store(warehouse, [Attempt(reward=None)])
    store_rewards(warehouse, {1: 0.2}, total=0.8)
    assert offer(warehouse, "sft").left_out == Counter(below_reward=1)
    found = offer(warehouse, "sft", {"normalised_reward": True}).candidates
    assert found.select("reward", "raw_total").row(0) == (0.8, 0.2)


def test_the_newest_revision_of_a_reward_counts(warehouse: Warehouse) -> None:
    [late] = store(warehouse, [Attempt(reward=0.2)])
    store_rewards(warehouse, {1: 0.8}, revision=1)
    found = one(warehouse, late)
    assert (found["reward"], found["reward_revision"], found["configuration"]) == (0.8, 1, "c1")


def test_what_lies_beyond_the_watermark_does_not_exist(warehouse: Warehouse) -> None:
    first, second, _ = store(warehouse, [Attempt()] * 3)
    found = offer(warehouse, watermark=2)
    assert (ids(found), found.left_out.total()) == ({first, second}, 0)


def test_quarantined_rows_of_this_job_are_left_out(warehouse: Warehouse) -> None:
    first, second = store(warehouse, [Attempt(), Attempt()])
    rows = pl.DataFrame({"job_id": ["job-1", "job-2"], "trajectory_id": [first, second], "reason": ["broken"] * 2})
    warehouse.insert("quarantined_trajectories", rows)
    found = offer(warehouse)
    assert (ids(found), found.left_out) == ({second}, Counter(quarantined=1))


def test_a_suspicious_row_is_left_out_until_it_was_redacted_again(warehouse: Warehouse) -> None:
    first, second = store(warehouse, [Attempt(), Attempt()])
    versions = [2**40 + 2**40 - 2, 7]
    rows = pl.DataFrame({"trajectory_id": [first, second], "version": versions, "problem": ["EMAIL"] * 2})
    warehouse.insert("suspicious_trajectories", rows)
    found = offer(warehouse)
    assert (ids(found), found.left_out) == ({second}, Counter(suspicious=1))


def test_who_was_erased_is_left_out_up_to_the_time_that_the_tombstone_covers(warehouse: Warehouse) -> None:
    gone, later, other = store(
        warehouse,
        [
            Attempt(columns={"user": "[USER_1]"}),
            Attempt(columns={"user": "[USER_1]", "stream_time": NOW + timedelta(hours=2)}),
            Attempt(columns={"user": "[USER_2]"}),
        ],
    )
    erased = {"user": "[USER_1]", "keys": [["k"]], "erased_at": NOW, "covers_until": NOW + timedelta(hours=1)}
    warehouse.insert("erasures", pl.DataFrame(erased))
    found = offer(warehouse)
    assert (ids(found), found.left_out) == ({later, other}, Counter(erased=1))
    assert gone not in ids(found)


def test_what_files_bring_of_an_erased_user_is_dated_by_when_it_ended(warehouse: Warehouse) -> None:
    users = {"user": "[USER_1]", "stream_time": NOW}
    old, new, other = store(
        warehouse,
        [
            Attempt(columns={**users, "ended_at": NOW - timedelta(days=20)}),
            Attempt(columns={**users, "ended_at": NOW}),
            Attempt(columns={"ended_at": NOW - timedelta(days=20)}),
        ],
    )
    before = NOW - timedelta(days=1)
    erased = {"user": "[USER_1]", "keys": [["k"]], "erased_at": before, "covers_until": before}
    warehouse.insert("erasures", pl.DataFrame(erased))
    assert ids(offer(warehouse)) == {old, new, other}, "the stream may bring late what nobody has erased"
    for job in ("job-1", "job-2"):
        rows = pl.DataFrame({"job_id": [job] * 3, "trajectory_id": [old, new, other]})
        warehouse.insert("imported_trajectories", rows)
        found = offer(warehouse, source="local", path="here") if job == "job-1" else offer(warehouse)
        assert (ids(found), found.left_out) == ({new, other}, Counter(erased=1))


def test_a_row_that_the_ledger_calls_erased_is_left_out_while_it_is_still_there(warehouse: Warehouse) -> None:
    store(warehouse, [Attempt(), Attempt()])
    mark = {"stream": STREAM, "sequence": 1, "stream_time": NOW, "verdict": "erased", "revision": ERASED_REVISION}
    warehouse.insert("trajectory_ledger", pl.DataFrame([mark]))
    assert offer(warehouse).left_out == Counter(erased=1)


def test_files_offer_what_they_brought_for_this_job_and_nothing_else(warehouse: Warehouse) -> None:
    old = {"stream_time": NOW - timedelta(days=90), "ended_at": NOW - timedelta(days=900)}
    brought, dated, _ = store(warehouse, [Attempt(columns=old), Attempt(), Attempt()])
    rows = pl.DataFrame({"job_id": ["job-1"] * 2, "trajectory_id": [brought, dated]})
    warehouse.insert("imported_trajectories", rows)
    assert ids(offer(warehouse, source="local", path="here")) == {brought, dated}
    found = offer(warehouse, filters={"last_days": 30}, source="local", path="here")
    assert (ids(found), found.left_out) == ({dated}, Counter(outside_window=1))


def test_what_files_have_brought_for_another_job_is_dated_by_when_it_ended_too(warehouse: Warehouse) -> None:
    months_ago = {"ended_at": NOW - timedelta(days=900)}
    old, late, new = store(warehouse, [Attempt(columns=months_ago), Attempt(columns=months_ago), Attempt()])
    rows = pl.DataFrame({"job_id": ["job-2"] * 2, "trajectory_id": [old, new]})
    warehouse.insert("imported_trajectories", rows)
    found = offer(warehouse, filters={"last_days": 30})
    assert (ids(found), found.left_out) == ({late, new}, Counter(outside_window=1)), "by the stream it may come late"


def test_a_row_that_was_stored_twice_is_offered_once(warehouse: Warehouse) -> None:
    store(warehouse, [Attempt()])
    store(warehouse, [Attempt()])
    assert offer(warehouse).candidates.height == 1
    assert offer(warehouse, filters={"task_domains": ["writing"]}).left_out == Counter(other_domain=1)


def test_a_task_is_its_group_else_its_id_else_what_was_asked(warehouse: Warehouse) -> None:
    def asking(text: str) -> Attempt:
        return Attempt(columns={"task_id": "", "group_id": ""}, document=document([user_says(text)]))

    store(
        warehouse,
        [
            Attempt("t", columns={"group_id": ""}),
            Attempt("t", columns={"group_id": "g"}),
            asking("Do  IT"),
            asking("do it "),
            asking("not"),
        ],
    )
    tasks = dict(offer(warehouse).candidates.select("trajectory_id", "task").iter_rows())
    by_id, by_group, *by_request = (tasks[name_of(number)] for number in range(1, 6))
    assert (by_id, by_group) == ("t", "g")
    assert by_request[0] == by_request[1] != by_request[2]
    called = dict(offer(warehouse).candidates.select("trajectory_id", "called").iter_rows())
    by_id, by_group, *by_request = (called[name_of(number)] for number in range(1, 6))
    assert by_id == by_group != 0 == max(by_request), "other groups are still of one task"


def test_signatures_tell_actions_and_openings_apart(warehouse: Warehouse) -> None:
    store(
        warehouse,
        [Attempt("a", ("x", "y")), Attempt("a", ("x", "y")), Attempt("a", ("y", "x")), Attempt("b", ("x", "y"))],
    )
    first, same, turned, other = (one(warehouse, name_of(number)) for number in range(1, 5))
    assert first["actions"] == same["actions"] != turned["actions"]
    assert first["actions"] == other["actions"]
    assert first["opening"] == same["opening"] == turned["opening"] != other["opening"]
    assert first["likeness"] == 0, "of a short text a simhash says nothing"


def test_only_worlds_that_exist_are_told_and_their_setups_are_told_apart(warehouse: Warehouse) -> None:
    store(warehouse, [Attempt("a", environment=world) for world in ("crafting", "crafting", "production")])
    store(warehouse, [Attempt("b", environment="crafting")], first=4)
    first, same, unknown, other = (one(warehouse, name_of(number)) for number in range(1, 5))
    assert [found["environment"] for found in (first, unknown)] == ["crafting", ""]
    assert first["setup"] == same["setup"] != other["setup"]
    assert unknown["setup"] == 0


def test_a_seed_draws_other_lots(warehouse: Warehouse) -> None:
    store(warehouse, [Attempt()])
    lots = {offered(warehouse, asked(), CurationPolicy(seed=seed)).candidates["draw"][0] for seed in (0, 0, 1)}
    assert len(lots) == 2


def test_documents_of_odd_shapes_are_judged_and_break_nothing(warehouse: Warehouse) -> None:
    shapes = ["{}", "[]", "not json", '{"turns": 3}', '{"agent_id": "main", "turns": [null, {"action": [1]}]}']
    store(warehouse, [Attempt(columns={"document": shape}) for shape in shapes])
    found = offer(warehouse)
    assert found.candidates.height + found.left_out.total() == len(shapes)
    assert found.left_out["nothing_written"] >= 3


def test_near_copies_are_found_by_their_words_and_other_long_answers_are_not(warehouse: Warehouse) -> None:
    words = [f"word{number * 7919 % 997}" for number in range(300)]
    changed = [*words[:150], "something-else", *words[151:]]
    other = [f"word{number * 7907 % 991}" for number in range(300)]
    store(warehouse, [Attempt(answer=" ".join(some)) for some in (words, changed, other)])
    assert set(without_copies(offer(warehouse).candidates)["trajectory_id"]) == {name_of(1), name_of(3)}


def test_real_attempts_are_merged_only_where_the_agent_did_the_same(warehouse: Warehouse, test_data: Path) -> None:
    documents = list(real_documents(test_data))
    store(
        warehouse,
        [
            Attempt(
                document=found,
                reward=float(found["task_context"].get("task_status") == "success"),
                columns={
                    "task_id": found["task_context"].get("task_id", ""),
                    "group_id": "",
                    "turns": min(len(found["turns"]), 50),
                    "tools": [turn["action"].get("tool_name") or "" for turn in found["turns"]],
                },
            )
            for found in documents
        ],
    )
    rows = offer(warehouse).candidates
    assert rows.height > 330
    done = {
        name_of(number): json.dumps([turn["action"] for turn in found["turns"]])
        for number, found in enumerate(documents, 1)
    }
    kept = without_copies(rows)
    kept_deeds = {(task, done[name]) for name, task in kept.select("trajectory_id", "task").iter_rows()}
    false_merges = [
        name for name, task in rows.select("trajectory_id", "task").iter_rows() if (task, done[name]) not in kept_deeds
    ]
    assert false_merges == [], "whoever did something else is still there"
    assert near_pairs(rows) == [], "different tasks are told apart"
