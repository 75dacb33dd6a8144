"""From stored trajectories to a stored dataset, for each kind of algorithm."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest

from rl_pipeline.assets.curated_datasets import verdicts
from rl_pipeline.curation.curating import CuratedDataset, curate
from rl_pipeline.curation.datasets import DatasetDamaged, DatasetMissing, fetch_dataset, newest_dataset
from rl_pipeline.curation.files import CONVERSATIONS, PAIRS, PROMPTS
from rl_pipeline.curation.policy import CurationPolicy
from rl_pipeline.environments.worlds import AgentGymServer, WorldDefinitions, Worlds
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline_tests.curation.frames import request
from rl_pipeline_tests.curation.stored import NOW, Attempt, name_of, setup_of, store
from rl_pipeline_tests.rewards.documents import document, user_says

POLICY = CurationPolicy(source_share=1.0)
TASKS = [f"task-{number}" for number in range(12)]


def attempts(environment: str = "") -> list[Attempt]:
    """Four attempts at each of twelve tasks, better and worse."""
    return [
        Attempt(task, ("look", f"try {tried}"), reward=0.1 + 0.25 * tried, environment=environment)
        for task in TASKS
        for tried in range(4)
    ]


@pytest.fixture
def objects(tmp_path: Path) -> DiskObjects:
    return DiskObjects(tmp_path / "objects")


def curated(
    warehouse: Warehouse,
    objects: DiskObjects,
    algorithm: Any,
    filters: dict[str, Any] | None = None,
    *,
    policy: CurationPolicy = POLICY,
    job_id: str = "job-1",
    revision: int = 1,
    asked_at: datetime = NOW,
    **dataset: Any,
) -> CuratedDataset:
    with TemporaryDirectory() as work:
        return curate(
            warehouse,
            objects,
            job_id=job_id,
            request=request(filters, **dataset).model_copy(update={"timestamp": asked_at}),
            accepted_at=NOW,
            algorithm=algorithm,
            revision=revision,
            now=NOW,
            watermark=10**6,
            policy=policy,
            work=Path(work),
        )


def read(warehouse: Warehouse, objects: DiskObjects, name: str, directory: Path) -> pl.DataFrame:
    fetch_dataset(objects, newest_dataset(warehouse, "job-1"), directory)
    return pl.read_parquet(directory / name)


def texts(messages: str) -> list[tuple[str, bool]]:
    return [(message["role"], message["trained"]) for message in json.loads(messages)]


def test_a_dataset_for_imitation_has_the_best_conversations(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    found = curated(warehouse, objects, "sft", sample_size=12)
    assert (found.report.offered, found.report.kept) == (48, 12)
    assert found.report.left_out == {"below_reward": 24, "beyond_sample": 12}
    rows = read(warehouse, objects, CONVERSATIONS, tmp_path / "dataset")
    assert rows["reward"].round(9).to_list() == [0.85] * 12
    assert set(rows["task"]) == set(TASKS)
    assert set(rows["role"]) == {"demonstration"}
    assert set(rows["split"]) == {"train", "holdout"}
    assert texts(rows["messages"][0]) == [
        ("user", False),
        ("assistant", True),
        ("tool", False),
        ("assistant", True),
        ("tool", False),
        ("assistant", True),
    ]


def test_a_dataset_for_preferences_has_pairs_and_their_conversations(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    found = curated(warehouse, objects, "dpo", {"pair_margin": 0.3})
    pairs = read(warehouse, objects, PAIRS, tmp_path / "dataset")
    conversations = pl.read_parquet(tmp_path / "dataset" / CONVERSATIONS)
    assert found.report.pairs == pairs.height > 12
    assert (pairs["margin"] >= 0.3).all()
    assert {*pairs["chosen_id"], *pairs["rejected_id"]} == set(conversations["trajectory_id"])
    assert texts(pairs["prompt"][0]) == [("user", False), ("assistant", False), ("tool", False)]
    assert texts(pairs["chosen"][0]) == [("assistant", True), ("tool", False), ("assistant", True)]
    by_task = pairs.group_by("task").agg(pl.col("split").n_unique())
    assert (by_task["split"] == 1).all()


def test_a_dataset_to_play_on_has_tasks_with_what_was_earned_at_them(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts("crafting"))
    found = curated(warehouse, objects, "rloo")
    prompts = read(warehouse, objects, PROMPTS, tmp_path / "dataset")
    assert prompts["task"].to_list() == sorted(TASKS)
    assert prompts["attempts"].to_list() == [4] * 12
    assert prompts["mean_reward"].round(6).to_list() == [0.475] * 12
    assert json.loads(prompts["environment_task"][0]) == setup_of(prompts["task"][0])
    assert texts(prompts["messages"][0]) == [("user", False)]
    assert found.report.environments == ("crafting",)
    assert not (tmp_path / "dataset" / PAIRS).exists()


def test_what_can_be_played_is_listed_for_imitation_and_preferences_too(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts("crafting"))
    for algorithm in ("sft", "dpo"):
        curated(warehouse, objects, algorithm)
        prompts = read(warehouse, objects, PROMPTS, tmp_path / algorithm)
        conversations = pl.read_parquet(tmp_path / algorithm / CONVERSATIONS)
        assert prompts["task"].to_list() == sorted(TASKS)
        sides = dict(conversations.select("task", "split").iter_rows())
        assert all(sides[task] == side for task, side in prompts.select("task", "split").iter_rows())


def test_where_nothing_can_be_played_pairs_for_a_reward_model_go_with_the_tasks(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    found = curated(warehouse, objects, "grpo")
    pairs = read(warehouse, objects, PAIRS, tmp_path / "dataset")
    assert found.report.pairs == pairs.height > 0
    assert found.report.kept == 48, "what is in no pair is played on all the same"


def tried_once(count: int) -> list[Attempt]:
    """As many requests, each tried once, better and worse, of two types."""
    return [
        Attempt(f"task-{one}", (f"do {one}",), reward=one % 10 / 10, columns={"task_type": ("bug", "essay")[one % 2]})
        for one in range(count)
    ]


def test_where_requests_were_tried_once_a_reward_model_learns_from_conversations_of_one_type(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    ids = store(warehouse, tried_once(60))
    found = curated(warehouse, objects, "ppo")
    pairs = read(warehouse, objects, PAIRS, tmp_path / "dataset")
    assert found.report.pairs == found.report.pairs_across_requests == pairs.height > 20
    assert verdicts(found.report)["there_are_pairs_to_learn_from"]
    assert newest_dataset(warehouse, "job-1").selection["pairs of different requests"] == pairs.height
    conversations = pl.read_parquet(tmp_path / "dataset" / CONVERSATIONS)
    sides = {row["trajectory_id"]: row for row in conversations.iter_rows(named=True)}
    for row in pairs.iter_rows(named=True):
        better, worse = sides[row["chosen_id"]], sides[row["rejected_id"]]
        assert (row["prompt"], row["across_requests"], row["margin"] > 0.09) == ("[]", True, True)
        assert (row["chosen"], row["rejected"]) == (better["messages"], worse["messages"])
        assert better["task_type"] == worse["task_type"]
        assert better["split"] == worse["split"] == row["split"]
    used = {one["trajectory_id"] for one in found.manifest.content["trajectories"] if one["role"] == "chosen"}
    assert used == set(pairs["chosen_id"]) <= set(ids)
    assert curated(warehouse, objects, "ppo", job_id="again").manifest_hash == found.manifest_hash


def test_where_attempts_at_one_request_give_enough_pairs_no_others_are_made(
    warehouse: Warehouse, objects: DiskObjects
) -> None:
    store(warehouse, [*attempts(), *tried_once(20)[12:]])
    few = curated(warehouse, objects, "ppo").report
    assert 0 < few.pairs_across_requests <= 4 < few.pairs
    enough = curated(warehouse, objects, "ppo", policy=replace(POLICY, enough_pairs=10)).report
    assert (enough.pairs, enough.pairs_across_requests) == (few.pairs - few.pairs_across_requests, 0)


@pytest.mark.parametrize("algorithm", ["dpo", "ppo"])
def test_where_nothing_can_be_compared_the_dataset_says_so(
    warehouse: Warehouse, objects: DiskObjects, algorithm: str
) -> None:
    store(warehouse, tried_once(20) if algorithm == "dpo" else [replace(one, reward=0.5) for one in tried_once(20)])
    found = curated(warehouse, objects, algorithm).report
    assert (found.pairs, found.lacks_pairs) == (0, True)
    assert not verdicts(found)["there_are_pairs_to_learn_from"]
    assert verdicts(curated(warehouse, objects, "sft").report)["there_are_pairs_to_learn_from"]


def stray(environment: str, setup: Any) -> Attempt:
    asked = {"instructions": "Do something else.", "environment": environment, "environment_task": setup}
    return Attempt("stray", document=document([user_says("Do something else.", "Done.")], asked))


@pytest.mark.parametrize(
    ("environment", "setup"),
    [
        ("production-linux", {"goal": "torch", "have": []}),
        ("crafting", {"goal": "a throne"}),
        ("crafting", "no object"),
    ],
)
def test_a_world_that_nobody_knows_neither_takes_the_pairs_away_nor_is_played_in(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path, environment: str, setup: Any
) -> None:
    store(warehouse, [*attempts(), stray(environment, setup)])
    found = curated(warehouse, objects, "rloo")
    pairs = read(warehouse, objects, PAIRS, tmp_path / "dataset")
    assert found.report.pairs == pairs.height > 0
    assert (found.report.environments, found.report.unplayable) == ((), 13)
    assert newest_dataset(warehouse, "job-1").environment is None
    prompts = pl.read_parquet(tmp_path / "dataset" / PROMPTS)
    assert prompts["environment"].null_count() == prompts.height


def test_a_world_that_the_deployment_has_set_up_is_played_in(warehouse: Warehouse, objects: DiskObjects) -> None:
    server = AgentGymServer(url="http://127.0.0.1:1", items=(0, 100))
    worlds = Worlds(WorldDefinitions(agentgym={"textcraft": server}))
    played = [replace(stray("agentgym:textcraft", {"item": item}), task=f"task-{item}") for item in range(12)]
    store(warehouse, played)
    found = curated(warehouse, objects, "rloo", policy=replace(POLICY, worlds=worlds))
    assert (found.report.environments, found.report.unplayable) == (("agentgym:textcraft",), 0)
    assert newest_dataset(warehouse, "job-1").environment == "agentgym:textcraft"
    assert curated(warehouse, objects, "rloo").report.environments == (), "where it is not set up, it is not"


def test_tasks_that_can_be_played_but_for_one_are_scored_by_a_reward_model(
    warehouse: Warehouse, objects: DiskObjects
) -> None:
    store(warehouse, [*attempts("crafting"), stray("production-linux", {})])
    found = curated(warehouse, objects, "ppo")
    assert (found.report.environments, found.report.unplayable) == (("crafting",), 1)
    assert found.report.pairs > 0
    assert newest_dataset(warehouse, "job-1").environment is None


def once_each(count: int, text: str, said: Callable[[int], str] = lambda _: "Done.") -> list[Attempt]:
    """The same request in executions that have each an id of their own."""
    return [
        Attempt(
            f"run-{number}", reward=0.9, columns={"group_id": ""}, document=document([user_says(text, said(number))])
        )
        for number in range(count)
    ]


def test_the_same_conversation_under_many_ids_counts_once(warehouse: Warehouse, objects: DiskObjects) -> None:
    store(warehouse, once_each(40, "Fix the failing test in utils.py"))
    found = curated(warehouse, objects, "sft")
    assert (found.report.kept, found.report.left_out) == (1, {"duplicate": 39})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(lambda _: "Fix the failing test", id="the same"),
        pytest.param(
            lambda number: ("Fix the failing test!", " fix the  FAILING test")[number % 2], id="the same words"
        ),
        pytest.param(
            lambda number: " ".join([f"word{place * 7919 % 997}" for place in range(300)] + [f"run {number}"]),
            id="nearly the same long one",
        ),
    ],
)
def test_a_request_is_on_one_side_whatever_its_executions_are_called(
    warehouse: Warehouse, objects: DiskObjects, text: Callable[[int], str]
) -> None:
    some = [once_each(number + 1, text(number), lambda tried: f"tried {tried}")[number] for number in range(40)]
    others = [Attempt(f"other-{number}", reward=0.9) for number in range(40)]
    store(warehouse, [*some, *others])
    found = curated(warehouse, objects, "sft")
    sides = {one["task"]: one["split"] for one in found.manifest.content["trajectories"]}
    assert len({side for task, side in sides.items() if task.startswith("run-")}) == 1
    assert set(sides.values()) == {"train", "holdout"}
    assert found.report.leakage.total == 0


def test_attempts_of_one_group_are_compared_though_each_has_a_task_id_of_its_own(
    warehouse: Warehouse, objects: DiskObjects
) -> None:
    grouped = [
        replace(one, columns={"task_id": f"execution-{number}", "group_id": f"group of {one.task}"})
        for number, one in enumerate(attempts())
    ]
    store(warehouse, grouped)
    assert curated(warehouse, objects, "grpo").report.tasks == 12
    assert curated(warehouse, objects, "dpo").report.pairs >= 12


def test_a_request_that_was_executed_often_is_compared_though_each_execution_has_an_id_of_its_own(
    warehouse: Warehouse, objects: DiskObjects
) -> None:
    executions = once_each(20, "Fix the failing test", lambda tried: f"tried {tried}")
    store(warehouse, [replace(one, reward=number / 20) for number, one in enumerate(executions)])
    assert curated(warehouse, objects, "dpo").report.pairs == POLICY.pairs_per_task
    played = curated(warehouse, objects, "grpo").report
    assert (played.tasks, played.prompts, played.kept) == (1, 1, POLICY.attempts_per_task)


def test_tasks_that_share_a_page_of_instructions_are_still_held_out(warehouse: Warehouse, objects: DiskObjects) -> None:
    page = " ".join(f"word{place * 7919 % 997}" for place in range(2_000))
    bugs = [f"The {thing} is broken." for thing in ("door", "lock", "roof", "lamp", "sink", "oven", "desk", "bell")]
    asked = [once_each(number + 1, f"{page} {bug}", bugs.__getitem__)[number] for number, bug in enumerate(bugs)]
    store(warehouse, asked)
    found = curated(warehouse, objects, "sft").report
    assert (found.kept, all(found.splits.values())) == (8, True)


def test_what_leaks_is_seen_in_what_was_written(
    warehouse: Warehouse, objects: DiskObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check shares nothing with what keeps the sides apart: here nothing does."""
    monkeypatch.setattr("rl_pipeline.curation.splits._ties", lambda _: ())
    texts = ("Fix the failing test", "fix the  FAILING test")
    store(warehouse, [once_each(number + 1, text)[number] for number, text in enumerate(texts)])
    monkeypatch.setattr("rl_pipeline.curation.splits._names", lambda rows: {task: task for task in rows["task"]})
    assert curated(warehouse, objects, "sft").report.leakage.openings == 1


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "rloo"])
def test_the_same_inputs_give_the_same_hash_whatever_the_job_is_called(
    warehouse: Warehouse, objects: DiskObjects, algorithm: str
) -> None:
    store(warehouse, attempts())
    one = curated(warehouse, objects, algorithm)
    other = curated(warehouse, objects, algorithm, job_id="another")
    assert one.manifest_hash == other.manifest_hash
    assert curated(warehouse, objects, algorithm, {"max_trajectory_length": 49}).manifest_hash != one.manifest_hash


def test_every_trajectory_says_why_it_is_there_and_does_not_expire(warehouse: Warehouse, objects: DiskObjects) -> None:
    store(warehouse, attempts())
    found = curated(warehouse, objects, "dpo")
    rows = warehouse.query("SELECT * FROM dataset_provenance FINAL ORDER BY trajectory_id, role")
    assert set(rows["dataset_id"]) == {found.dataset_id} == {"job-1.r1"}
    assert set(rows["role"]) == {"chosen", "rejected"}
    assert rows["trajectory_id"].n_unique() == found.report.kept
    number = next(number for number in range(1, 49) if name_of(number) == rows["trajectory_id"][0])
    assert (rows["reward_id"][0], rows["configuration"][0]) == (f"reward of {number}, c1.0", "c1")
    listed = {(one["trajectory_id"], one["role"]) for one in found.manifest.content["trajectories"]}
    assert listed == set(rows.select("trajectory_id", "role").iter_rows())
    held = warehouse.query("SELECT trajectory_id FROM trajectories FINAL WHERE held")
    assert set(held["trajectory_id"]) == set(rows["trajectory_id"])


def test_the_row_tells_what_planning_and_the_model_card_want(warehouse: Warehouse, objects: DiskObjects) -> None:
    store(warehouse, attempts("crafting"))
    found = curated(warehouse, objects, "rloo")
    row = newest_dataset(warehouse, "job-1")
    assert (row.dataset_id, row.manifest_hash, row.manifest_url) == ("job-1.r1", found.manifest_hash, found.url)
    assert (row.trajectories, row.holdout) == (48, found.report.splits["holdout"])
    assert row.domains == {"coding": 48}
    assert row.environment == "crafting"
    assert row.selection["offered"] == 48
    assert row.rewards["configurations"] == "c1"


def test_a_new_revision_leaves_the_older_one_and_is_the_newest(warehouse: Warehouse, objects: DiskObjects) -> None:
    store(warehouse, attempts())
    curated(warehouse, objects, "sft")
    broken = warehouse.query("SELECT trajectory_id FROM dataset_provenance FINAL LIMIT 1")
    rows = broken.with_columns(job_id=pl.lit("job-1"), reason=pl.lit("a poisoned row"))
    warehouse.insert("quarantined_trajectories", rows)
    second = curated(warehouse, objects, "sft", revision=2)
    assert newest_dataset(warehouse, "job-1").dataset_id == second.dataset_id == "job-1.r2"
    assert second.report.left_out["quarantined"] == 1
    assert objects.exists("job-1.r1/manifest.json")


def test_curating_a_revision_again_replaces_it_whole(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    curated(warehouse, objects, "dpo")
    again = curated(warehouse, objects, "sft", sample_size=4)
    rows = warehouse.query("SELECT trajectory_id, role FROM dataset_provenance FINAL")
    assert Counter(rows["role"]) == Counter(demonstration=4)
    assert warehouse.query("SELECT count() AS n FROM trajectories FINAL WHERE held")["n"][0] == 4
    left = {found.key.rpartition("/")[2] for found in objects.list("job-1.r1/")}
    assert left == {"manifest.json", CONVERSATIONS}, "the pairs of before are gone"
    fetch_dataset(objects, newest_dataset(warehouse, "job-1"), tmp_path / "dataset")
    assert again.manifest_hash == newest_dataset(warehouse, "job-1").manifest_hash


def test_shares_are_honoured_and_a_shortage_is_reported(warehouse: Warehouse, objects: DiskObjects) -> None:
    some = [
        Attempt(f"{domain}-{number}", (f"do {number}",), reward=0.9, columns={"domain": domain})
        for domain, count in (("coding", 30), ("research", 30), ("general", 5), ("writing", 9))
        for number in range(count)
    ]
    store(warehouse, some)
    shares = {"coding": 0.4, "research": 0.3, "general": 0.3}
    found = curated(warehouse, objects, "ppo", {"domain_shares": shares, "literal_filter": True}, sample_size=40)
    kept = {domain: (count.quota, count.kept, count.shortage) for domain, count in found.report.domains.items()}
    assert kept == {"coding": (16, 16, 0), "research": (12, 12, 0), "general": (12, 5, 7)}
    assert found.report.left_out["other_domain"] == 9
    assert found.report.kept + sum(found.report.left_out.values()) == found.report.offered == 74


def test_caps_that_cost_more_than_a_third_are_shown(warehouse: Warehouse, objects: DiskObjects) -> None:
    publishers = {"large": 40, "small": 10}
    some = [
        Attempt(f"{name}-{one}", (f"do {one}",), reward=0.9, columns={"publisher": name})
        for name, count in publishers.items()
        for one in range(count)
    ]
    store(warehouse, some)
    capped, whole = (
        curated(warehouse, objects, "sft", policy=CurationPolicy(source_share=share)) for share in (0.5, 1)
    )
    assert (capped.report.kept, capped.report.lost_to_caps) == (20, 30)
    assert not verdicts(capped.report)["caps_leave_most_of_it"]
    assert (whole.report.kept, whole.report.lost_to_caps) == (50, 0)
    assert verdicts(whole.report)["caps_leave_most_of_it"]


def test_rewards_of_two_configurations_are_shown(warehouse: Warehouse, objects: DiskObjects) -> None:
    store(warehouse, attempts())
    assert verdicts(curated(warehouse, objects, "dpo").report)["all_rewards_are_of_one_configuration"]
    store(warehouse, [Attempt(task, ("sit",), reward=0.9) for task in TASKS], first=100, configuration="c2")
    found = curated(warehouse, objects, "rloo").report
    assert found.rewards["configurations"] == ["c1", "c2"]
    assert not verdicts(found)["all_rewards_are_of_one_configuration"]


def test_a_trajectory_with_something_sensitive_is_left_out_and_reported(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    leaking = document([user_says("Write to jane.doe@northwind.com now", "I wrote.")])
    store(warehouse, [Attempt("a", reward=0.9, document=leaking), Attempt("b", reward=0.9)])
    found = curated(warehouse, objects, "sft")
    assert (found.report.residual, found.report.left_out) == ({"EMAIL": 1}, {"sensitive": 1})
    assert read(warehouse, objects, CONVERSATIONS, tmp_path / "dataset")["task"].to_list() == ["b"]


def test_a_task_that_is_named_by_something_sensitive_is_left_out(warehouse: Warehouse, objects: DiskObjects) -> None:
    store(
        warehouse, [Attempt("mail jane.doe@northwind.com", reward=0.9, document=document([user_says("Hi", "Hello.")]))]
    )
    assert curated(warehouse, objects, "sft").report.left_out == {"sensitive": 1}


def test_who_opted_out_is_never_learnt_from(warehouse: Warehouse, objects: DiskObjects) -> None:
    refusing = document([user_says("Hi", "Hello.")], {"opt_out": True})
    store(warehouse, [Attempt("a", reward=0.9, document=refusing)])
    assert curated(warehouse, objects, "sft").report.left_out == {"opted_out": 1}


def test_pairs_that_show_the_same_to_the_model_are_left_out(warehouse: Warehouse, objects: DiskObjects) -> None:
    """Another agent made the difference, of which the trajectory's own agent saw and wrote nothing."""
    both = [
        document([user_says("Hi", "Hello."), user_says("…", f"helping {number}") | {"agent_id": "helper"}])
        for number in range(2)
    ]
    store(warehouse, [Attempt("a", reward=0.9 * number, document=one) for number, one in enumerate(both)])
    found = curated(warehouse, objects, "dpo")
    assert (found.report.pairs, found.report.kept) == (0, 0)
    assert found.report.left_out == {"no_usable_pair": 2}


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "rloo"])
def test_an_empty_dataset_is_stored_and_says_why(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path, algorithm: str
) -> None:
    store(warehouse, [Attempt(columns={"domain": "writing"})])
    found = curated(warehouse, objects, algorithm, {"task_domains": ["coding"]})
    assert (found.report.kept, found.report.left_out) == (0, {"other_domain": 1})
    assert found.report.missing_domains == ("coding",)
    assert read(warehouse, objects, CONVERSATIONS, tmp_path / "dataset").is_empty()


def test_only_what_the_row_says_is_fetched(warehouse: Warehouse, objects: DiskObjects, tmp_path: Path) -> None:
    with pytest.raises(DatasetMissing, match="job-1"):
        newest_dataset(warehouse, "job-1")
    store(warehouse, attempts())
    curated(warehouse, objects, "sft")
    row = newest_dataset(warehouse, "job-1")
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / PAIRS).write_text("left by an older revision")
    fetch_dataset(objects, row, tmp_path / "dataset")
    assert sorted(path.name for path in (tmp_path / "dataset").iterdir()) == [CONVERSATIONS, "manifest.json"]
    [stored] = [found.key for found in objects.list(f"{row.dataset_id}/") if found.key.endswith(CONVERSATIONS)]
    objects.put(stored, b"something else")
    (tmp_path / "dataset" / CONVERSATIONS).unlink()
    with pytest.raises(DatasetDamaged, match=CONVERSATIONS):
        fetch_dataset(objects, row, tmp_path / "dataset")
    assert not (tmp_path / "dataset" / "manifest.json").exists(), "nothing says that it is whole"


def test_the_window_ends_where_the_request_says(warehouse: Warehouse, objects: DiskObjects) -> None:
    old = {"stream_time": NOW - timedelta(days=8)}
    store(warehouse, [Attempt("a", reward=0.9), Attempt("b", reward=0.9, columns=old)])
    assert curated(warehouse, objects, "sft", {"last_days": 7}).report.left_out == {"outside_window": 1}


@pytest.mark.parametrize("asked_at", [NOW.replace(year=NOW.year + 100), NOW.replace(year=NOW.year - 1)])
def test_the_last_days_are_those_before_the_request_was_accepted_whatever_its_own_clock_says(
    warehouse: Warehouse, objects: DiskObjects, asked_at: datetime
) -> None:
    old = {"stream_time": NOW - timedelta(days=8)}
    store(warehouse, [Attempt("a", reward=0.9), Attempt("b", reward=0.9, columns=old)])
    found = curated(warehouse, objects, "sft", {"last_days": 7}, asked_at=asked_at)
    assert found.report.left_out == {"outside_window": 1}
