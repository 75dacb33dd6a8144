"""Outcomes of sessions on their way from the stream into the windows on which a rollout is judged."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest

from rl_pipeline.contracts import ServingOutcome, serialize
from rl_pipeline.deployment.judging import judge
from rl_pipeline.deployment.limits import Limits
from rl_pipeline.deployment.outcomes import SERVING_STREAM, drain_outcomes, windows_of
from rl_pipeline.deployment.state import RampStep, Rollout
from rl_pipeline.deployment.windows import (
    CLOSED_SECONDS,
    MATURITY_SECONDS,
    OBSERVED_SECONDS,
    SETTLING_SECONDS,
    WINDOW_SECONDS,
    Arm,
    Clock,
    Window,
)
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.redaction.session_names import stored_name
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.warehouse import WarehouseError
from rl_pipeline_tests.deployment.states import a_rollout
from rl_pipeline_tests.ingestion.ingesting import POLICY
from rl_pipeline_tests.training.job_tables import emptied, migrated_database, store_rewards
from rl_pipeline_tests.waiting import wait_until

KEY = RedactionKey("v1", b"a key of gateways, for tests alone")
# Lately, or what is stored would have expired by the machine's clock.
START = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
WINDOW = timedelta(seconds=WINDOW_SECONDS)
SECOND = timedelta(seconds=1)
OBSERVED, SETTLING, CLOSED = (timedelta(seconds=each) for each in (OBSERVED_SECONDS, SETTLING_SECONDS, CLOSED_SECONDS))
ROLLOUT = a_rollout().model_copy(update={"started_at": START, "step_since": START})
LATER = START + timedelta(hours=5)
MATURED = Clock().matured_windows


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def an_outcome(session: str, model: str = "new", **more: Any) -> ServingOutcome:
    given: dict[str, Any] = {
        "session_id": session,
        "model_id": model,
        "generation": 2,
        "gateway": "gateway-1",
        "started_at": START,
        "ended_at": START,
        "requests": 2,
        "failed_requests": 0,
        "failed": False,
        "deployment_id": ROLLOUT.deployment_id,
        "step": 0,
    }
    return ServingOutcome(**given | more)


def publish(stream: JetStream, *contents: ServingOutcome | bytes) -> None:
    before = stream.state(SERVING_STREAM).last_sequence
    for number, content in enumerate(contents):
        data = content if isinstance(content, bytes) else serialize(content)
        stream.publish("agent.rl.serving.outcome.v1", data, f"outcome-{before}-{number}")
    consumer = f"CONSUMER.INFO.{SERVING_STREAM}.serving_outcomes"
    wait_until(lambda: stream.request(consumer)["num_pending"] >= len(contents))


def drain(stream: JetStream, warehouse: ClickHouseWarehouse) -> tuple[int, int]:
    drained = drain_outcomes(stream, warehouse, redactor=lambda: Redactor(POLICY), now=LATER)
    return drained.stored, drained.refused


def store(warehouse: ClickHouseWarehouse, *rows: dict[str, Any]) -> None:
    """Outcomes as they are in the table, in the order of their sequences."""
    plain = {
        "deployment_id": ROLLOUT.deployment_id,
        "generation": 2,
        "step": 0,
        "model_id": "new",
        "failed": False,
        "feedback": "",
    }
    stored = [plain | {"sequence": number} | row for number, row in enumerate(rows, start=1)]
    warehouse.insert("serving_outcomes", pl.DataFrame(stored))


def told(session: str, began: datetime, after: timedelta = OBSERVED, **more: Any) -> dict[str, Any]:
    """A session that began then, and was told of so much later."""
    return {"session_id": session, "started_at": began, "stream_time": began + after, **more}


def counts(windows: list[Window]) -> list[tuple[int, int, float, Arm, Arm]]:
    return [
        ((window.start - START) // WINDOW, window.step, window.share, window.candidate, window.control)
        for window in windows
    ]


def test_an_outcome_is_stored_with_the_time_of_the_stream_and_acknowledged(
    stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    failing = {"failed": True, "failed_requests": 1, "failure": "upstream_timeout", "prompt_tokens": 9000}
    publish(stream, an_outcome("a", **failing), an_outcome("b", feedback="negative", latency_ms=12.5))
    assert drain(stream, warehouse) == (2, 0)
    rows = warehouse.query("SELECT * FROM serving_outcomes FINAL ORDER BY session_id").to_dicts()
    assert [(row["session_id"], row["failed"], row["failure"], row["feedback"]) for row in rows] == [
        ("a", True, "upstream_timeout", ""),
        ("b", False, "", "negative"),
    ]
    assert (rows[0]["prompt_tokens"], rows[1]["latency_ms"]) == (9000, 12.5)
    message = stream.get(SERVING_STREAM, rows[0]["sequence"])
    assert abs(rows[0]["stream_time"] - message.time) < timedelta(milliseconds=1)
    assert stream.request(f"CONSUMER.INFO.{SERVING_STREAM}.serving_outcomes")["num_ack_pending"] == 0
    assert drain(stream, warehouse) == (0, 0)


def test_all_that_the_stream_had_is_drained_although_the_server_gives_little_at_a_time(
    stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    class Sparing:
        def __getattr__(self, name: str) -> Any:
            return getattr(stream, name)

        def fetch(self, name: str, consumer: str, _: int, wait_seconds: float) -> Any:
            return stream.fetch(name, consumer, 1, wait_seconds)

    publish(stream, *(an_outcome(f"session-{number}") for number in range(120)))
    drained = drain_outcomes(
        Sparing(),  # type: ignore[arg-type]
        warehouse,
        redactor=lambda: Redactor(POLICY),
        now=datetime.now(UTC),
    )
    assert drained.stored == 120


def test_what_is_stored_and_not_acknowledged_is_stored_once(stream: JetStream, warehouse: ClickHouseWarehouse) -> None:
    class Dying:
        def __getattr__(self, name: str) -> Any:
            return getattr(stream, name)

        def acknowledge(self, _: Any) -> None:
            raise KeyboardInterrupt

    publish(stream, an_outcome("a"), an_outcome("b"))
    with pytest.raises(KeyboardInterrupt):
        drain(Dying(), warehouse)  # type: ignore[arg-type]
    publish(stream, an_outcome("a"))  # by a gateway whose note of having told it was lost
    drain(stream, warehouse)
    assert warehouse.query("SELECT count() AS n FROM serving_outcomes")["n"][0] >= 2
    assert warehouse.query("SELECT count() AS n FROM serving_outcomes FINAL")["n"][0] == 2
    first = warehouse.query("SELECT sequence FROM serving_outcomes FINAL ORDER BY session_id")["sequence"].to_list()
    assert first == [1, 2]


def test_nothing_is_fetched_while_the_warehouse_does_not_take_it(
    stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    publish(stream, an_outcome("a"))
    warehouse.execute("RENAME TABLE serving_outcomes TO elsewhere")
    try:
        with pytest.raises(WarehouseError, match="UNKNOWN_TABLE"):
            drain(stream, warehouse)
    finally:
        warehouse.execute("RENAME TABLE elsewhere TO serving_outcomes")
    consumer = stream.request(f"CONSUMER.INFO.{SERVING_STREAM}.serving_outcomes")
    assert (consumer["num_pending"], consumer["num_ack_pending"]) == (1, 0)
    assert drain(stream, warehouse) == (1, 0)


def test_what_is_no_outcome_becomes_a_dead_letter_and_keeps_nothing_else_back(
    stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    invalid = json.loads(serialize(an_outcome("b"))) | {"model_id": "no id at all"}
    publish(stream, b"no outcome", an_outcome("a"), json.dumps(invalid).encode())
    assert drain(stream, warehouse) == (1, 2)
    letters = [json.loads(stream.last_on_subject("RL_DLQ", f"agent.rl.dlq.RL_SERVING.{n}.0").data) for n in (1, 3)]
    assert [(letter["reason"], letter["path"]) for letter in letters] == [("not_json", "$"), ("pattern", "model_id")]
    assert stream.request(f"CONSUMER.INFO.{SERVING_STREAM}.serving_outcomes")["num_ack_pending"] == 0


def test_outcomes_are_counted_by_window_step_and_model(warehouse: ClickHouseWarehouse) -> None:
    store(
        warehouse,
        told("a", START + WINDOW),
        told("b", START + WINDOW, failed=True),
        told("c", START + 1.5 * WINDOW, model_id="old"),
        told("d", START + 1.9 * WINDOW, step=1, feedback="negative"),
        told("e", START + 3 * WINDOW, step=1, feedback="positive", model_id="old"),
        told("elsewhere", START + WINDOW, deployment_id="another"),
        told("of nobody", START + WINDOW, model_id="third"),
    )
    assert counts(windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])) == [
        (1, 0, 0.1, Arm(2, 1), Arm(1)),
        (1, 1, 0.25, Arm(1, 0, 1, 1), Arm()),
        (3, 1, 0.25, Arm(), Arm(1, 0, 1, 0)),
    ]


def test_a_rollout_counts_nothing_of_an_earlier_one_of_the_same_model(warehouse: ClickHouseWarehouse) -> None:
    earlier = START - timedelta(days=3)
    store(
        warehouse,
        told("a", earlier, failed=True),
        told("b", earlier, model_id="old", feedback="negative"),
        told("a", START + WINDOW, failed=True),
    )
    assert counts(windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])) == [(1, 0, 0.1, Arm(1, 1), Arm())]


def test_a_window_is_given_once_it_is_closed_for_every_clock(warehouse: ClickHouseWarehouse) -> None:
    store(warehouse, told("a", START + WINDOW), told("b", START + 2 * WINDOW))
    for windows in range(3):
        closed = START + (windows + 1) * WINDOW + CLOSED
        assert len(windows_of(warehouse, ROLLOUT, closed, session_keys=[KEY])) == windows


def test_what_arrives_late_while_its_window_settles_counts_there(warehouse: ClickHouseWarehouse) -> None:
    store(
        warehouse,
        told("in time", START + WINDOW, timedelta()),
        told("at the last moment", START + WINDOW, WINDOW + OBSERVED + SETTLING - timedelta(milliseconds=1)),
        told("long after its beginning", START + 1.9 * WINDOW, OBSERVED + SETTLING, failed=True),
    )
    assert counts(windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])) == [(1, 0, 0.1, Arm(3, 1), Arm())]


def test_what_arrives_after_its_window_is_closed_counts_nowhere(warehouse: ClickHouseWarehouse) -> None:
    store(
        warehouse,
        told("in time", START + WINDOW),
        told("too late", START + WINDOW, WINDOW + OBSERVED + SETTLING, failed=True),
    )
    assert counts(windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])) == [(1, 0, 0.1, Arm(1), Arm())]


def test_equal_models_are_equal_at_every_look_though_one_takes_longer_to_succeed(
    warehouse: ClickHouseWarehouse,
) -> None:
    chance = Random(3)
    rollout = ROLLOUT.model_copy(update={"step": 2})
    sessions = []
    for number in range(300):
        model, fails = ("new", "old")[chance.random() < 0.5], chance.random() < 0.1
        known = timedelta(seconds=1 if fails else 5 if model == "old" else 40)
        sessions.append(told(f"s{number}", START + number * WINDOW / 10, known, model_id=model, failed=fails, step=2))
    sessions.sort(key=lambda session: session["stream_time"])
    given: list[Window] = []
    for look in range(1, 40):
        now = START + look * WINDOW
        arrived = [
            session | {"sequence": number}
            for number, session in enumerate(sessions, start=1)
            if now - WINDOW <= session["stream_time"] < now
        ]
        if arrived:
            store(warehouse, *arrived)
        found = windows_of(warehouse, rollout, now, session_keys=[KEY])
        assert found[: len(given)] == given, "a closed window does not change"
        given = found
        judgement = judge(rollout, "ramping", found, now, mode="full", limits=Limits())
        assert judgement.verdict != "roll_back"
        assert judgement.evidence["combined"]["highest"] < 5
        assert {window.candidate.sessions + window.control.sessions for window in found} <= {10}
    assert len(given) == 30


def test_a_session_that_is_told_again_counts_again_until_its_first_failure(warehouse: ClickHouseWarehouse) -> None:
    store(
        warehouse,
        told("a", START + WINDOW),
        told("a", START + 2 * WINDOW, failed=True),
        told("a", START + 3 * WINDOW, failed=True),
        told("a", START + 4 * WINDOW),
        told("a", START + 5 * WINDOW, model_id="old", failed=True),
    )
    assert counts(windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])) == [
        (1, 0, 0.1, Arm(1), Arm()),
        (2, 0, 0.1, Arm(1, 1), Arm()),
    ]


def test_a_session_that_has_failed_counts_again_at_the_next_split_but_not_in_the_bake_after_its_own(
    warehouse: ClickHouseWarehouse,
) -> None:
    share = ROLLOUT.steps[-1]
    steps = (share, share, share.model_copy(update={"share": 1.0}), share)
    rollout = ROLLOUT.model_copy(update={"steps": steps, "step": 3})
    places = range(0, 8, 2)
    store(
        warehouse,
        *(told("a", START + place * WINDOW, step=place // 2, failed=True) for place in places),
        told("b", START + 5 * WINDOW, step=2, failed=True),
        told("b", START + 6 * WINDOW, step=2, failed=True),
        told("b", START + 7 * WINDOW, step=3),
    )
    found = counts(windows_of(warehouse, rollout, LATER, session_keys=[KEY]))
    assert [(place, step, candidate) for place, step, _, candidate, _ in found] == [
        (0, 0, Arm(1, 1)),
        (2, 1, Arm(1, 1)),
        (5, 2, Arm(1, 1)),
        (6, 3, Arm(1, 1)),
        (7, 3, Arm(1)),
    ]


def test_a_failure_that_is_told_too_late_to_count_does_not_silence_its_session(warehouse: ClickHouseWarehouse) -> None:
    store(
        warehouse,
        told("a", START + WINDOW, WINDOW + OBSERVED + SETTLING, failed=True),
        told("a", START + 30 * WINDOW, failed=True),
        told("a", START + 60 * WINDOW, failed=True),
    )
    assert counts(windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])) == [(30, 0, 0.1, Arm(1, 1), Arm())]


def test_rewards_are_read_a_maturity_after_their_sessions_began_in_this_order(warehouse: ClickHouseWarehouse) -> None:
    store(warehouse, told("a", START + WINDOW), told("b", START + 60 * WINDOW, step=1))
    began = START + 5 * WINDOW
    for number, (seconds, reward) in enumerate([(600, 0.5), (30, 0.1), (1790, 0.9)]):
        at = began + timedelta(seconds=seconds + number)
        store_rewards(warehouse, 1, at=at, totals=(reward,), model="new", seconds=seconds, first=9 - number)
    store_rewards(warehouse, 2, at=began + 60 * WINDOW, totals=(0.7,), model="old", first=11, seconds=0)
    store_rewards(warehouse, 2, at=began, model="new", revision=1, seconds=0, first=21)
    store_rewards(warehouse, 2, at=began, model="third", first=41, seconds=0)
    assert counts(windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])) == [
        (1, 0, 0.1, Arm(1), Arm()),
        (60, 1, 0.25, Arm(1), Arm()),
        (5 + MATURED, 0, 0.1, Arm(rewards=(0.5, 0.1, 0.9)), Arm()),
        (65 + MATURED, 1, 0.25, Arm(), Arm(rewards=(0.7, 0.7))),
    ]
    due = began + (MATURED + 1) * WINDOW + CLOSED
    before, after = (windows_of(warehouse, ROLLOUT, now, session_keys=[KEY]) for now in (due - WINDOW, due))
    assert [sum(len(window.candidate.rewards) for window in each) for each in (before, after)] == [0, 3]


def test_a_faster_clock_closes_windows_and_reads_rewards_sooner_and_leaves_out_what_takes_longer(
    warehouse: ClickHouseWarehouse,
) -> None:
    fast = Clock(observed_seconds=1, settling_seconds=1, maturity_seconds=60)
    assert (fast.matured_windows, Clock().matured_windows) == (8, 192)
    began = START + WINDOW
    store(warehouse, told("a", began, after=SECOND), told("too late for it", began, after=WINDOW + 2 * SECOND))
    store_rewards(warehouse, 1, at=began + 59 * SECOND, totals=(0.5,), model="new", seconds=59)
    store_rewards(warehouse, 1, at=began + 60 * SECOND, totals=(0.6,), model="old", seconds=60, first=2)
    closed = START + 2 * WINDOW + 3 * SECOND
    at = {
        seconds: windows_of(warehouse, ROLLOUT, closed + seconds * SECOND, clock=fast, session_keys=[KEY])
        for seconds in (-1, 0, 79, 80)
    }
    assert (at[-1], counts(at[0])) == ([], [(1, 0, 0.1, Arm(1), Arm())])
    assert (at[79], counts(at[80])[1:]) == (at[0], [(9, 0, 0.1, Arm(rewards=(0.5,)), Arm())])


def test_what_is_scored_too_late_or_began_before_the_rollout_does_not_count(warehouse: ClickHouseWarehouse) -> None:
    at = START + timedelta(hours=1)
    store_rewards(warehouse, 1, at=at, totals=(0.5,), model="old", seconds=MATURITY_SECONDS)
    store_rewards(warehouse, 1, at=at, totals=(0.6,), model="new", seconds=MATURITY_SECONDS - 1, first=2)
    soon = START + timedelta(minutes=5)
    store_rewards(warehouse, 1, at=soon, totals=(0.1,), model="old", seconds=301, first=11)
    store_rewards(warehouse, 1, at=soon, totals=(0.2,), model="old", seconds=299, first=12)
    # A session that was there before stays with the control whatever the shares are: it is no part of the comparison.
    store_rewards(warehouse, 1, at=START - WINDOW, totals=(0.3,), model="old", session="a", seconds=0, first=21)
    store_rewards(warehouse, 1, at=soon, totals=(0.4,), model="old", session="a", seconds=0, first=22)
    assert [
        (window.candidate.rewards, window.control.rewards)
        for window in windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])
    ] == [((), (0.2,)), ((0.6,), ())]


def test_who_was_at_work_in_the_half_hour_before_is_no_part_of_a_rollout_whatever_its_clock(
    warehouse: ClickHouseWarehouse,
) -> None:
    fast = Clock(maturity_seconds=60)
    soon, before = START + timedelta(minutes=5), START - timedelta(minutes=29)
    store_rewards(warehouse, 1, at=before, totals=(0.3,), model="old", session="a", seconds=0, first=1)
    # This was scored too late to count by itself.
    store_rewards(warehouse, 1, at=START - WINDOW, totals=(0.3,), model="old", session="b", seconds=61, first=2)
    for first, session in enumerate("abc", start=11):
        store_rewards(warehouse, 1, at=soon, totals=(0.4,), model="old", session=session, seconds=0, first=first)
    found = windows_of(warehouse, ROLLOUT, LATER, clock=fast, session_keys=[KEY])
    assert [window.control.rewards for window in found] == [(0.4,)]


def test_identical_models_stay_though_failures_are_scored_long_before_successes(
    warehouse: ClickHouseWarehouse,
) -> None:
    """One task in five fails after 30 s and earns little, all others succeed after 10 minutes. The candidate is new and
    the control was there before: counted when they are scored, most of these candidates would be rolled back."""
    pairs = range(8)
    tasks = pl.concat([fast_failures(pair) for pair in pairs]).with_row_index("sequence", 1)
    tasks = tasks.with_columns(
        trajectory_id=pl.format("t{}", "sequence"), stream=pl.lit("RL_TRAJECTORIES"), stream_time="scored_at"
    )
    warehouse.insert("trajectory_signals", tasks.select(*SIGNALS).with_columns(ingest_revision=1, is_late=False))
    warehouse.insert("rewards", tasks.drop("seconds").with_columns(configuration=pl.lit("configuration-1"), revision=0))
    verdicts = []
    for pair in pairs:
        now = START + timedelta(seconds=MATURITY_SECONDS) + timedelta(hours=1)
        rollout = ROLLOUT.model_copy(update={"candidate": f"new-{pair}", "control": f"old-{pair}"})
        found = windows_of(warehouse, rollout, now, session_keys=[KEY])
        assert sum(len(window.candidate.rewards) for window in found) > 200
        verdicts.append(judge(rollout, "ramping", found, now, mode="full", limits=Limits()).verdict)
    assert verdicts.count("roll_back") <= 1


SIGNALS = ("stream", "sequence", "trajectory_id", "stream_time", "model_version", "seconds")


def fast_failures(seed: int) -> pl.DataFrame:
    """What two equal models do from 20 minutes before the rollout until an hour after, with 100,000 tasks a day."""
    random = np.random.default_rng(seed)
    began = np.sort(random.uniform(-1200, 3600, 5556))
    is_new = (began >= 0) & (random.random(len(began)) < 0.1)
    fails = random.random(len(began)) < 0.2
    seconds = np.where(fails, 30.0, 600.0)
    scored = START.timestamp() + began + seconds
    return pl.DataFrame(
        {
            "model_version": np.where(is_new, f"new-{seed}", f"old-{seed}").tolist(),
            "seconds": seconds,
            "scored_at": pl.Series(scored * 1000).cast(pl.Int64).cast(pl.Datetime("ms", "UTC")),
            "raw_total": np.where(fails, 0.1, 0.8),
        }
    )


def test_where_nothing_is_split_the_rewards_of_the_time_before_are_there_too(warehouse: ClickHouseWarehouse) -> None:
    store_rewards(warehouse, 1, at=START - 40 * WINDOW, totals=(0.8,), model="old", session="a", seconds=0)
    store_rewards(warehouse, 1, at=START - 400 * WINDOW, totals=(0.1,), model="old", first=11, seconds=0)
    store_rewards(warehouse, 1, at=START + 40 * WINDOW, totals=(0.7,), model="new", session="a", first=21, seconds=0)
    whole = (RampStep(share=1, min_seconds=0, min_samples=9),)
    rollout = ROLLOUT.model_copy(update={"strategy": "immediate", "steps": whole, "bake_seconds": 3600})
    assert counts(windows_of(warehouse, rollout, LATER, session_keys=[KEY])) == [
        (MATURED - 40, 0, 1.0, Arm(), Arm(rewards=(0.8,))),
        (MATURED + 40, 0, 1.0, Arm(rewards=(0.7,)), Arm()),
    ]
    assert windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY]) == []


def test_a_reward_that_is_computed_or_published_again_changes_no_window(warehouse: ClickHouseWarehouse) -> None:
    at = START + 5 * WINDOW
    store_rewards(warehouse, 3, at=at, totals=(0.2, 0.4, 0.6), model="new", seconds=9)
    before = windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])
    warehouse.execute(
        """
        INSERT INTO rewards
        SELECT * REPLACE (scored_at + INTERVAL 1 HOUR AS scored_at, 7 AS published_sequence) FROM rewards
        """
    )
    assert windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY]) == before
    assert before[0].candidate.rewards == (0.2, 0.4, 0.6)


def test_another_reward_configuration_changes_no_window_that_was_given(warehouse: ClickHouseWarehouse) -> None:
    at = START + 5 * WINDOW
    store_rewards(warehouse, 3, at=at, totals=(0.2, 0.4, 0.6), model="new", seconds=9)
    before = windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])
    changed = at + timedelta(minutes=15)
    row = {"hash": "another", "scores_hash": "s", "configuration": "{}"}
    warehouse.insert(
        "reward_configurations", pl.DataFrame([row | {"first_used_at": changed, "current_since": changed}])
    )
    warehouse.execute(
        """
        INSERT INTO rewards SELECT * REPLACE (
            'another' AS configuration, 1 - raw_total AS raw_total, scored_at + INTERVAL 15 MINUTE AS scored_at
        ) FROM rewards
        """
    )
    store_rewards(warehouse, 1, at=changed, totals=(0.9,), model="new", configuration="another", first=11, seconds=9)
    after = windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])
    assert after[:-1] == before
    assert [window.candidate.rewards for window in after] == [(0.2, 0.4, 0.6), (0.9,)]


def test_a_session_has_one_reward_that_of_the_trajectory_with_which_it_began(warehouse: ClickHouseWarehouse) -> None:
    at = START + 95 * WINDOW
    store_rewards(warehouse, 3, at=at, totals=(0.2, 0.4, 0.6), model="new", session="a", first=11, seconds=900)
    store_rewards(warehouse, 2, at=at, totals=(0.8, 0.9), model="old", session="a", first=21, seconds=800)
    store_rewards(warehouse, 1, at=at, totals=(0.3,), model="new", session="b", first=31, seconds=900)
    found = windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])
    assert counts(found) == [(5 + MATURED, 0, 0.1, Arm(rewards=(0.2, 0.3)), Arm())]
    # What it began before them is scored too late to count, and leaves the closed window as it is.
    late = at + timedelta(seconds=MATURITY_SECONDS)
    seconds = MATURITY_SECONDS + 901
    store_rewards(warehouse, 1, at=late, totals=(1.0,), model="new", session="a", first=41, seconds=seconds)
    assert windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY]) == found


def trajectory(name: str, session: str, model: str) -> dict[str, Any]:
    return {
        "trajectory_id": name,
        "session_id": session,
        "model_version": model,
        "stream_time": START + WINDOW,
        "held": True,
    }


def feedback(sequence: int, trajectory: str, kind: str, place: int, rating: int = 0) -> dict[str, Any]:
    return {
        "stream": "RL_FEEDBACK",
        "sequence": sequence,
        "stream_time": START,
        "verdict": "accepted",
        "revision": 1,
        "trajectory_id": trajectory,
        "kind": kind,
        "rating": rating,
        "drained_at": START + place * WINDOW,
    }


def test_ratings_that_came_by_the_feedback_stream_count_once_for_a_session(warehouse: ClickHouseWarehouse) -> None:
    warehouse.insert(
        "trajectories",
        pl.DataFrame(
            [
                trajectory("t1", "a", "new"),
                trajectory("t2", "a", "new"),
                trajectory("t3", "b", "new"),
                trajectory("t4", "c", "old"),
                trajectory("t5", "d", "new"),
            ]
        ),
    )
    warehouse.insert(
        "trajectory_feedback",
        pl.DataFrame(
            [
                feedback(1, "t1", "thumbs_down", 4),
                feedback(2, "t2", "thumbs_up", 5),
                feedback(3, "t3", "stars", 4, rating=2),
                feedback(4, "t4", "stars", 4, rating=3),
                feedback(5, "t4", "comment", 3),
                feedback(6, "t5", "thumbs_down", 4),
                feedback(7, "unknown", "thumbs_down", 4),
            ]
        ),
    )
    # The gateway tells of d's rating itself.
    store(warehouse, told(stored_name(KEY, "d"), START + 2 * WINDOW, feedback="negative"))
    assert counts(windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])) == [
        (2, 0, 0.1, Arm(1, 0, 1, 1), Arm()),
        (4, 0, 0.1, Arm(rated=2, negative=2), Arm(rated=1)),
    ]


def test_a_rating_that_a_gateway_tells_of_later_stays_where_it_was_counted(warehouse: ClickHouseWarehouse) -> None:
    warehouse.insert("trajectories", pl.DataFrame([trajectory("t1", "a", "new"), trajectory("t2", "b", "old")]))
    ratings = [feedback(1, "t1", "thumbs_down", 4), feedback(2, "t2", "thumbs_up", 4)]
    warehouse.insert("trajectory_feedback", pl.DataFrame(ratings))
    store(warehouse, told("else", START + 4 * WINDOW))
    given = windows_of(warehouse, ROLLOUT, START + 5 * WINDOW + CLOSED, session_keys=[KEY])
    assert counts(given) == [(4, 0, 0.1, Arm(1, rated=1, negative=1), Arm(rated=1))]
    store(warehouse, told(stored_name(KEY, "a"), START + 60 * WINDOW, feedback="negative", sequence=9))
    found = windows_of(warehouse, ROLLOUT, LATER, session_keys=[KEY])
    assert found[:1] == given
    assert counts(found[1:]) == [(60, 0, 0.1, Arm(1), Arm())]


def test_what_comes_later_never_changes_a_window_that_was_given(warehouse: ClickHouseWarehouse) -> None:
    given: list[Window] = []
    for round_number in range(6):
        now = START + (round_number + 1) * 30 * WINDOW
        sessions = [
            told(
                f"s{number % 40}",
                now - 25 * WINDOW + number * timedelta(seconds=3),
                timedelta(seconds=1 if number % 7 == 0 else 40),
                failed=number % 7 == 0,
            )
            | {
                "model_id": ("new", "old")[number % 2],
                "step": round_number // 2,
                "sequence": 1000 * round_number + number,
            }
            for number in range(60)
        ]
        store(warehouse, *sessions)
        for number, minutes in enumerate((1, 12, 29, 31)):
            began = now - (25 + number) * WINDOW - timedelta(minutes=minutes)
            store_rewards(
                warehouse,
                5,
                at=now - (25 + number) * WINDOW,
                first=1000 * round_number + 100 * number + 1,
                model=("new", "old")[number % 2],
                session=f"r{began:%H%M}",
                seconds=60 * minutes,
            )
        found = windows_of(warehouse, ROLLOUT, now, session_keys=[KEY])
        assert found[: len(given)] == given
        assert len(found) > len(given)
        given = found


def test_a_bake_is_told_with_all_of_the_traffic(warehouse: ClickHouseWarehouse) -> None:
    store(warehouse, told("a", START + WINDOW, step=3))
    steps = (*ROLLOUT.steps, ROLLOUT.steps[-1].model_copy(update={"share": 1.0}))
    baking: Rollout = ROLLOUT.model_copy(update={"steps": steps, "step": 3})
    assert [window.share for window in windows_of(warehouse, baking, LATER, session_keys=[KEY])] == [1.0]
