"""From the stream of session outcomes into `serving_outcomes`, and from there into the windows of a rollout.

Outcomes are stored, then acknowledged; storing one again changes nothing. What is no outcome becomes a dead letter; one
of a session that was erased with its user is not stored.

**Windows never change once they are closed**, or a judgement could be another one later. An outcome belongs to the
window in which its session began (`deployment.windows`). By the end of its time the gateway has told of it, and
`Clock.settling_seconds` later the stream has it; what comes later than that counts in no window. A rating that came by
the feedback stream belongs to the window in which it was stored. A session that is told again counts again, but after
its first failure that counted no more until the next split, with whichever model: one session is one error. Gateways
count so too (`serving.failed_sessions` says why). A rating that the gateway tells of too counts once, where it was
known first.

**A reward belongs to the window in which its session began**, and is read `Clock.matured_windows` later. A trajectory
began as long before the stream stored it as it says that it lasted, whatever its agent's clock says, and is rewarded in
time if that was scored within `Clock.maturity_seconds` of its beginning; all others are as if they were not. A session
began with the first of its trajectories, whose reward is its only one: what else it earns is more of the same, but
would count as so many sessions that agree. A trajectory without a session is one by itself. It counts as it was first
scored: another reward configuration changes what is scored from then on, for both arms, and nothing of what was read.

What began before the rollout does not count: it was all given to the control, or is of an earlier rollout of the model,
which has the same id where an A/B test follows it.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, cast

from rl_pipeline.contracts import ContractError, ServingOutcome, parse_message
from rl_pipeline.deployment.state import Rollout
from rl_pipeline.deployment.windows import LOOKED_BACK_SECONDS, WINDOW_SECONDS, Arm, Clock, Window
from rl_pipeline.ingestion.dead_letters import publish_dead_letters
from rl_pipeline.ingestion.excerpts import excerpt_of
from rl_pipeline.ingestion.judging import Judgement, Refusal, is_erased
from rl_pipeline.ingestion.tombstones import read_erasures
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.redaction.session_names import stored_names
from rl_pipeline.stores.stream import Delivery, StoredMessage, Stream
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.refusals import OpenRedactor

SERVING_STREAM = "RL_SERVING"
OUTCOMES_CONSUMER = "serving_outcomes"
OUTCOME_SUBJECT = "agent.rl.serving.outcome.v1"

_BATCH = 1000
_LETTER_REVISION = 0

_OUTCOMES = """
    SELECT intDiv(toUnixTimestamp64Milli(started_at), {window:UInt32}) AS place, step, model_id,
        count() AS sessions, countIf(failed) AS errors,
        countIf(feedback != '') AS rated, countIf(feedback = 'negative') AS negative
    FROM (
        SELECT started_at, step, model_id, failed, sequence,
            if(has({rated_before:Array(String)}, session_id), '', serving_outcomes.feedback) AS feedback,
            if(step < length({splits:Array(UInt32)}), {splits:Array(UInt32)}[step + 1], step) AS split,
            minIf(sequence, failed) OVER (PARTITION BY session_id, split) AS first_failure
        FROM serving_outcomes FINAL
        WHERE deployment_id = {deployment:String} AND model_id IN {models:Array(String)}
            AND started_at >= {since:DateTime64(3, 'UTC')}
            AND toUnixTimestamp64Milli(stream_time)
                < (intDiv(toUnixTimestamp64Milli(started_at), {window:UInt32}) + 1) * {window:UInt32} + {open:Int64}
    )
    WHERE first_failure = 0 OR sequence <= first_failure
    GROUP BY place, step, model_id HAVING place < {end:Int64}
    ORDER BY place, step
"""
_REWARDS = """
    SELECT intDiv(session_began, {window:UInt32}) AS began_in, first.1 AS model_id, first.2 AS reward
    FROM (
        SELECT min(began) AS session_began, argMin((model, reward, sequence), (began, sequence)) AS first
        FROM (
            SELECT sequence, trajectory_id, any(session_id) AS session, any(model_version) AS model,
                argMin(raw_total, (scored_at, configuration)) AS reward,
                toUnixTimestamp64Milli(min(scored_at)) AS scored
            FROM rewards
            WHERE stream = {stream:String} AND revision = 0 AND model_version IN {models:Array(String)}
                AND stream_time >= {since:DateTime64(3, 'UTC')} - INTERVAL {looked_back:Int64} MILLISECOND
            GROUP BY sequence, trajectory_id
        ) AS rewarded
        INNER JOIN (
            SELECT sequence, trajectory_id,
                argMin(toUnixTimestamp64Milli(stream_time) - toInt64(1000 * seconds), ingest_revision) AS began,
                min(stream_time) < {since:DateTime64(3, 'UTC')} AS was_there_before
            FROM trajectory_signals
            WHERE stream = {stream:String} AND model_version IN {models:Array(String)}
                AND stream_time >= {since:DateTime64(3, 'UTC')} - INTERVAL {looked_back:Int64} MILLISECOND
            GROUP BY sequence, trajectory_id
        ) AS measured USING (sequence, trajectory_id)
        WHERE was_there_before OR scored < began + {maturity:Int64}
        GROUP BY session, if(session = '', sequence, 0), if({is_split:Bool}, '', model)
    )
    WHERE session_began >= toUnixTimestamp64Milli({since:DateTime64(3, 'UTC')})
        AND began_in + {matured:Int64} < {end:Int64}
    ORDER BY session_began, first.3
"""
# What people said outright, and what they showed by asking for rework or giving up; a comment is no rating.
_RATINGS = """
    SELECT session_id, model_version AS model_id,
        intDiv(toUnixTimestamp64Milli(min(drained_at)), {window:UInt32}) AS place,
        argMin(kind IN ('thumbs_down', 'correction', 'abandoned') OR (kind = 'stars' AND rating <= 2), drained_at)
            AS is_negative
    FROM trajectory_feedback FINAL
    INNER JOIN (
        SELECT trajectory_id, session_id, model_version FROM trajectories FINAL
        WHERE model_version IN {models:Array(String)} AND stream_time >= {since:DateTime64(3, 'UTC')}
    ) AS rated USING trajectory_id
    WHERE verdict = 'accepted' AND kind != 'comment' AND drained_at >= {since:DateTime64(3, 'UTC')}
    GROUP BY session_id, model_id HAVING place < {end:Int64}
    ORDER BY place
"""
_RATED_AT_GATEWAYS = """
    SELECT session_id, toUnixTimestamp64Milli(min(stream_time)) AS told FROM serving_outcomes
    WHERE deployment_id = {deployment:String} AND feedback != '' AND started_at >= {since:DateTime64(3, 'UTC')}
    GROUP BY session_id
"""


@dataclass(frozen=True, slots=True)
class DrainedOutcomes:
    """What became of the outcomes that were waiting."""

    stored: int = 0
    refused: int = 0


def drain_outcomes(messages: Stream, warehouse: Warehouse, *, redactor: OpenRedactor, now: datetime) -> DrainedOutcomes:
    """Store all outcomes that the stream had at `now`, however many: the windows that are closed by then are judged
    next, and must have all of theirs. Raises what the stores raise; what was not acknowledged comes again.
    """
    # Fails here if it must: a message that is fetched in vain comes again ever later.
    warehouse.execute("INSERT INTO serving_outcomes SELECT * FROM serving_outcomes WHERE false")
    stored = refused = 0
    is_behind = True
    while is_behind:
        deliveries = messages.fetch(SERVING_STREAM, OUTCOMES_CONSUMER, _BATCH, 0)
        good, bad = _sorted(deliveries)
        erasures = read_erasures(warehouse) if good else {}
        kept = [
            (delivery.message, outcome)
            for delivery, outcome in good
            if not is_erased((outcome.session_id,), outcome.started_at, erasures)
        ]
        _store(warehouse, kept)
        if bad:
            opened = redactor()
            judgements = [_judgement(delivery.message, error, opened) for delivery, error in bad]
            publish_dead_letters(messages, SERVING_STREAM, judgements, revision=_LETTER_REVISION, now=now)
        messages.acknowledge(deliveries)
        stored, refused = stored + len(kept), refused + len(bad)
        # Those that come meanwhile are for the next look, or a busy stream would never let this one end.
        is_behind = any(delivery.message.time < now for delivery in deliveries)
    return DrainedOutcomes(stored, refused)


def _sorted(
    deliveries: Sequence[Delivery],
) -> tuple[list[tuple[Delivery, ServingOutcome]], list[tuple[Delivery, ContractError]]]:
    good: list[tuple[Delivery, ServingOutcome]] = []
    bad: list[tuple[Delivery, ContractError]] = []
    for delivery in deliveries:
        try:
            good.append((delivery, cast("ServingOutcome", parse_message(OUTCOME_SUBJECT, delivery.message.data))))
        except ContractError as error:
            bad.append((delivery, error))
    return good, bad


def _store(warehouse: Warehouse, outcomes: Sequence[tuple[StoredMessage, ServingOutcome]]) -> None:
    import polars as pl

    if not outcomes:
        return
    told = [(message, outcome.model_dump()) for message, outcome in outcomes]
    rows = [
        {name: outcome.get(name) for name in ServingOutcome.model_fields}
        | {
            "deployment_id": outcome.get("deployment_id") or "",
            "step": outcome.get("step") or 0,
            "failure": outcome.get("failure") or "",
            "feedback": outcome.get("feedback") or "",
            "stream_time": message.time,
            "sequence": message.sequence,
        }
        for message, outcome in told
    ]
    kinds: dict[str, Any] = {"latency_ms": pl.Float64, "prompt_tokens": pl.UInt64, "completion_tokens": pl.UInt64}
    kinds |= {name: pl.Datetime("ms", "UTC") for name in ("started_at", "ended_at", "stream_time")}
    warehouse.insert("serving_outcomes", pl.DataFrame(rows, schema_overrides=kinds))


def _judgement(message: StoredMessage, error: ContractError, redactor: Redactor) -> Judgement:
    return Judgement(
        sequence=message.sequence,
        stream_time=message.time,
        size=len(message.data),
        sha256=sha256(message.data).hexdigest(),
        verdict="refused",
        reason=error.limit,
        message_id=message.message_id or "",
        refusal=Refusal(message.subject, error.path, error.advice, excerpt_of(message.data, redactor, {})),
    )


@dataclass(slots=True)
class _Counted:
    """What is counted of one arm in one window."""

    sessions: int = 0
    errors: int = 0
    rated: int = 0
    negative: int = 0
    rewards: list[float] = field(default_factory=list)

    def arm(self) -> Arm:
        return Arm(self.sessions, self.errors, self.rated, self.negative, tuple(self.rewards))


def windows_of(
    warehouse: Warehouse,
    rollout: Rollout,
    now: datetime,
    *,
    clock: Clock = Clock(),  # noqa: B008 - it never changes
    session_keys: Sequence[RedactionKey],
    trajectories: str = "RL_TRAJECTORIES",
) -> list[Window]:
    """The closed windows of a rollout, oldest first, with sessions, ratings and rewards of both models.

    Drain the outcomes before: those that the stream had at `now` belong into them. `session_keys` are what gateways
    stored sessions under. `trajectories` is the stream that rewards are of. Where the traffic cannot be split, those of
    the control from the time before count too, for as long as the candidate bakes, and sessions that go on with the
    candidate begin anew.
    """
    milliseconds = WINDOW_SECONDS * 1000
    since = rollout.started_at.astimezone(UTC).replace(tzinfo=None)
    asked: dict[str, Any] = {
        "deployment": rollout.deployment_id,
        "models": [rollout.candidate, rollout.control],
        "since": since,
        "stream": trajectories,
        "window": milliseconds,
        "maturity": int(clock.maturity_seconds * 1000),
        "looked_back": int(max(clock.maturity_seconds, LOOKED_BACK_SECONDS) * 1000),
        "matured": clock.matured_windows,
        "splits": rollout.splits,
        "is_split": rollout.strategy != "immediate",
        "open": int((clock.observed_seconds + clock.settling_seconds) * 1000),
        "end": int((now.timestamp() - clock.observed_seconds - 2 * clock.settling_seconds) * 1000) // milliseconds,
    }
    before = timedelta(seconds=rollout.bake_seconds if rollout.strategy == "immediate" else 0)
    counted: dict[tuple[int, int], dict[str, _Counted]] = {}
    ratings, rated_before = _ratings(warehouse, asked, session_keys)
    for row in warehouse.query(_OUTCOMES, asked | {"rated_before": rated_before}).iter_rows(named=True):
        found = _of(counted, row["place"], row["step"], row["model_id"])
        found.sessions, found.errors, found.rated, found.negative = (
            row[name] for name in ("sessions", "errors", "rated", "negative")
        )
    step_at = _steps(counted)
    for row in ratings:
        found = _of(counted, row["place"], step_at(row["place"]), row["model_id"])
        found.rated, found.negative = found.rated + 1, found.negative + row["is_negative"]
    for row in warehouse.query(_REWARDS, asked | {"since": since - before}).iter_rows(named=True):
        place = row["began_in"] + asked["matured"]
        _of(counted, place, step_at(row["began_in"]), row["model_id"]).rewards.append(row["reward"])
    return [_window(rollout, *key, arms) for key, arms in sorted(counted.items())]


def _ratings(
    warehouse: Warehouse, asked: Mapping[str, Any], session_keys: Sequence[RedactionKey]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Ratings that came by the feedback stream, one for each session, but for those that a gateway had told of when
    their windows were closed; and the sessions, as gateways store them, whose ratings a gateway told of later."""
    ratings = warehouse.query(_RATINGS, asked)
    if not ratings.height:
        return [], []
    told = dict(warehouse.query(_RATED_AT_GATEWAYS, asked).iter_rows())
    stored: dict[str, list[str]] = {}
    for name_there, name in stored_names(session_keys, ratings["session_id"]).items():
        if name_there in told:
            stored.setdefault(name, []).append(name_there)
    counted, rated_before = [], []
    for row in ratings.iter_rows(named=True):
        closed = (row["place"] + 1) * asked["window"] + asked["open"]
        there = stored.get(row["session_id"], [])
        if all(told[each] >= closed for each in there):
            counted.append(row)
            rated_before += there
    return counted, rated_before


def _of(counted: dict[tuple[int, int], dict[str, _Counted]], place: int, step: int, model_id: str) -> _Counted:
    return counted.setdefault((place, step), {}).setdefault(model_id, _Counted())


def _steps(counted: Mapping[tuple[int, int], object]) -> Callable[[int], int]:
    """At which step the rollout was in a window, by the outcomes up to then."""
    entered: dict[int, int] = dict(sorted(counted))
    places = list(entered)

    def step_at(place: int) -> int:
        before = bisect_right(places, place)
        return entered[places[before - 1]] if before else 0

    return step_at


def _window(rollout: Rollout, place: int, step: int, arms: Mapping[str, _Counted]) -> Window:
    nothing = _Counted()
    return Window(
        start=datetime.fromtimestamp(place * WINDOW_SECONDS, UTC),
        step=step,
        share=rollout.steps[step].share if step < len(rollout.steps) else 1.0,
        candidate=arms.get(rollout.candidate, nothing).arm(),
        control=arms.get(rollout.control, nothing).arm(),
    )
