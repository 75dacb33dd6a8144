"""After a rollback: in which part of the sessions the candidate failed, the likely cause, and what to do about it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rl_pipeline.deployment.arrival import has_come_in
from rl_pipeline.deployment.rollbacks import NoRollback, Rollback, rollback_of
from rl_pipeline.deployment.slices import Session, Slice, excess_p_value, slices_of, worst_of
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.session_names import stored_names
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.warehouse import Warehouse

SETTLING = timedelta(minutes=1)
"""So long after a rollback its last sessions may still be on their way."""
PATIENCE = timedelta(minutes=30)
"""So long after it their trajectories and rewards are waited for: then people want to know what is known."""
MOST_SLICES = 10
"""That a report lists."""

CONTEXT_BUCKETS = ((1_000, "under 1K"), (4_000, "1K to 4K"), (16_000, "4K to 16K"), (64_000, "16K to 64K"))
LONGEST_CONTEXT = "over 64K"
LONG_CONTEXTS = ("4K to 16K", "16K to 64K", LONGEST_CONTEXT)
ALL = "all sessions"

_WHAT_WENT_BADLY = {
    "user_dissatisfaction": ("was rated badly", "feedback"),
    "performance_degradation": ("earned less than half of the control's sessions do", "reward"),
}
_FAILED = ("failed", "failed")
_NOT_WHOLE = (
    "The audit has lost how this rollout began, so it is looked into by what its rollback and the gateways tell: see "
    "`rl-pipeline deployment verify-audit`."
)

_TOLD = """
    SELECT session_id, model_id, max(failed) AS failed, anyIf(failure, failure != '') AS failure,
        anyIf(feedback, feedback != '') AS feedback, min(stream_time) AS stream_time,
        max(intDiv(prompt_tokens, greatest(requests - failed_requests, 1))) AS context_tokens
    FROM serving_outcomes FINAL
    WHERE deployment_id = {deployment:String} AND model_id IN {models:Array(String)}
    GROUP BY session_id, model_id
"""
# What a session was about is known from its trajectory, whichever model that names: where the candidate failed, the
# model in service has answered.
_DONE = """
    SELECT session_id, any(domain) AS domain, any(agent_id) AS agent_id,
        groupUniqArrayArray(tools) AS tools, max(total_tokens) AS total_tokens
    FROM trajectories FINAL
    WHERE model_version IN {models:Array(String)} AND stream_time >= {since:DateTime64(3, 'UTC')}
    GROUP BY session_id
"""
# As each trajectory was first scored: so the rollout was judged, whatever configuration is chosen since.
_EARNED = """
    SELECT session, model, avg(reward) AS reward FROM (
        SELECT any(session_id) AS session, any(model_version) AS model,
            argMin(raw_total, (scored_at, configuration)) AS reward
        FROM rewards
        WHERE model_version IN {models:Array(String)} AND stream_time >= {since:DateTime64(3, 'UTC')} AND revision = 0
        GROUP BY stream, sequence, trajectory_id
    )
    GROUP BY session, model
"""
_NOTHING_DONE: Mapping[str, Any] = {"domain": "", "agent_id": "", "tools": [], "total_tokens": None}


@dataclass(frozen=True, slots=True)
class Finding:
    """A likely cause, and what to do about it."""

    cause: str
    recommendation: str


FINDINGS: Mapping[tuple[str, str], Finding] = {
    ("context length", "long"): Finding(
        "the model runs out of memory or time on long contexts",
        "Retrain with gradient checkpointing enabled, so that long trajectories fit into training, and limit the "
        "context length that is served until then.",
    ),
    ("context length", "short"): Finding(
        "the model does badly on short requests",
        "Look at the share of short tasks in the dataset, and add some.",
    ),
    ("tool", ""): Finding(
        "the model misuses a tool",
        "Add trajectories with good uses of it to the dataset, and items on it to the tool_usage suite.",
    ),
    ("domain", ""): Finding(
        "the model has lost a skill in one domain",
        "Balance the dataset by domain (RL_TRAINING_DOMAIN_SHARES), and compare its benchmark with the base model's.",
    ),
    ("agent", ""): Finding(
        "the model does not get on with one agent's prompts or protocol",
        "Look at this agent's system prompt and at how many of its trajectories the dataset has.",
    ),
    ("hour", ""): Finding(
        "something happened at one time, rather than in one kind of session",
        "Look at the backends and the machine at that hour before anything is trained again.",
    ),
    ("failure", "upstream_timeout"): Finding(
        "the model answers too slowly",
        "Compare lengths and latencies of its answers with the control's, and penalise length or give it more machine.",
    ),
    ("failure", "upstream_unreachable"): Finding(
        "the model's backend went away",
        "Look at the log of its backend: a process that dies while it loads or serves is no fault of the weights.",
    ),
    ("failure", ""): Finding(
        "the model fails in every kind of session alike",
        "Look at its checkpoint and its serving configuration before its data: compare the tokenizer, the template and "
        "the precision with the control's.",
    ),
    ("", ""): Finding(
        "the model is a little worse everywhere",
        "Do not train longer on the same data: look at the rewards that it was trained on, and at its benchmarks.",
    ),
}
"""By the dimension that stands out and what is special about its value."""


@dataclass(frozen=True, slots=True)
class PostMortem:
    """What was found."""

    deployment_id: str
    training_job_id: str | None
    model_id: str
    control: str
    reason: str
    rolled_back_at: datetime
    rolled_back_by: str
    measure: str
    """What counts as a session that went badly."""
    overall: Slice
    worst: Slice | None
    slices: tuple[Slice, ...]
    """The most significant ones."""
    failures: Mapping[str, int]
    """How the candidate's sessions failed."""
    cause: str
    recommendation: str
    evidence: Mapping[str, Any]
    """As it was recorded with the rollback."""
    told: int = 0
    """Sessions of both models that gateways told of."""
    without_trajectory: int = 0
    """Those of them of which nobody knows what they were about."""
    without_reward: int = 0
    is_whole: bool = True
    """Whether the audit still has how the rollout began."""
    url: str = ""
    """Where the text is kept, once it is."""

    @property
    def alert(self) -> str:
        """What people are called with."""
        what = f"{self.reason.replace('_', ' ')} ({self.overall.rate:.0%})"
        where = f" in {self.worst.dimension} {self.worst.value}" if self.worst else ""
        return (
            f"URGENT: Model {self.model_id} rolled back due to {what}. Found: {self.cause}{where}. "
            f"Recommendation: {self.recommendation}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self) | {"rolled_back_at": self.rolled_back_at.isoformat(), "alert": self.alert}

    @property
    def text(self) -> str:
        """For people, as Markdown."""
        where = f"**{self.worst.dimension} {self.worst.value}**" if self.worst else "no single kind of session"
        rows = [
            f"| {each.dimension} | {each.value} | {each.bad} of {each.sessions} ({each.rate:.1%}) | "
            f"{each.control_bad} of {each.control_sessions} ({each.control_rate:.1%}) | {each.p_value:.2g} |"
            for each in (self.overall, *self.slices)
        ]
        failures = ", ".join(f"{kind} {count}" for kind, count in self.failures.items()) or "none"
        return "\n".join(
            (
                f"# {self.model_id} was rolled back",
                "",
                f"Deployment `{self.deployment_id}`, at {self.rolled_back_at:%Y-%m-%d %H:%M:%S} UTC by "
                f"{self.rolled_back_by}: **{self.reason}**. {self.control} serves again.",
                "",
                f"It stands out in {where}. Likely cause: {self.cause}.",
                "",
                f"Recommendation: {self.recommendation}",
                "",
                f"A session counts if it {self.measure}. p is Fisher's, corrected after Holm.",
                "",
                f"| dimension | value | {self.model_id} | {self.control} | p |",
                "|---|---|---|---|---|",
                *rows,
                "",
                f"How its sessions failed: {failures}.",
                "",
                f"Of {self.told} sessions, {self.without_trajectory} had no trajectory by then, so that nobody knows "
                f"what they were about, and {self.without_reward} had no reward.",
                "",
                *(() if self.is_whole else (_NOT_WHOLE, "")),
            )
        )


def hold_post_mortems(
    warehouse: Warehouse,
    objects: Objects,
    now: datetime,
    *,
    session_keys: Sequence[RedactionKey],
    last_sequence: Callable[[], int],
    skipped: Callable[[str], None] = lambda _: None,
) -> list[PostMortem]:
    """Look into the rollbacks that nobody has looked into yet, and keep what was found, for people and for machines.

    A rollback is left alone until the trajectories that were published up to `SETTLING` after it are ingested and
    scored, for `PATIENCE` at most. `last_sequence` is that of their stream. A rollback that cannot be read is told to
    `skipped`, at every look, and keeps no other one waiting.
    """
    import polars as pl

    due = warehouse.query(
        """
        SELECT deployment_id, max(at) AS rolled_back_at FROM deployment_audit FINAL
        WHERE event = 'rolled_back' AND deployment_id != '' AND at <= {until:DateTime64(3, 'UTC')}
            AND deployment_id NOT IN (SELECT deployment_id FROM post_mortems)
        GROUP BY deployment_id ORDER BY max(generation)
        """,
        {"until": (now - SETTLING).astimezone(UTC).replace(tzinfo=None)},
    )
    held = []
    for deployment_id, at in due.iter_rows():
        try:
            rollback = rollback_of(warehouse, deployment_id)
        except NoRollback as unreadable:
            skipped(str(unreadable))
            continue
        models, until = (rollback.candidate, rollback.control), at + SETTLING
        if now < at + PATIENCE and not has_come_in(
            warehouse, models, rollback.started_at, until, last_sequence=last_sequence
        ):
            continue
        found = post_mortem(warehouse, deployment_id, session_keys=session_keys)
        key = f"post-mortems/{deployment_id}.md"
        objects.put(key, found.text.encode())
        found = replace(found, url=objects.url(key))
        row = {
            "deployment_id": deployment_id,
            "model_id": found.model_id,
            "report": json.dumps(found.as_dict()),
            "report_url": found.url,
            "held_at": now,
        }
        warehouse.insert("post_mortems", pl.DataFrame([row]))
        held.append(found)
    return held


def post_mortem(warehouse: Warehouse, deployment_id: str, *, session_keys: Sequence[RedactionKey]) -> PostMortem:
    """Look into a rollback. Raises `NoRollback` where this deployment had none.

    `session_keys` are what gateways stored sessions under: by them trajectories are found to be of these sessions.
    """
    rollback = rollback_of(warehouse, deployment_id)
    change = rollback.change
    reason = _reason(change.reason)
    measure, column = _WHAT_WENT_BADLY.get(reason, _FAILED)
    rows = _sessions(warehouse, rollback, session_keys)
    limit = _median(row["reward"] for row in rows if row["model_id"] == rollback.control and row["reward"] is not None)
    judged = [(row, bad) for row in rows if (bad := _is_bad(row, column, limit)) is not None]
    sessions = [Session(row["model_id"] == rollback.candidate, bad, _values(row)) for row, bad in judged]
    overall = _overall(sessions)
    slices = slices_of(sessions)
    worst = worst_of(slices, overall)
    failures = _failures(rows, rollback.candidate)
    finding = _finding(worst, failures, column)
    return PostMortem(
        deployment_id=deployment_id,
        training_job_id=rollback.training_job_id,
        model_id=rollback.candidate,
        control=rollback.control,
        reason=change.reason,
        rolled_back_at=change.at,
        rolled_back_by=change.by,
        measure=measure,
        overall=overall,
        worst=worst,
        slices=tuple(slices[:MOST_SLICES]),
        failures=failures,
        cause=finding.cause,
        recommendation=finding.recommendation,
        evidence=change.evidence,
        told=len(rows),
        without_trajectory=sum(not row["is_known"] for row in rows),
        without_reward=sum(row["reward"] is None for row in rows),
        is_whole=rollback.is_whole,
    )


def _sessions(warehouse: Warehouse, rollback: Rollback, session_keys: Sequence[RedactionKey]) -> list[dict[str, Any]]:
    """What the gateways told of each session, with what its agent did in it."""
    asked = {
        "deployment": rollback.deployment_id,
        "models": [rollback.candidate, rollback.control],
        "since": rollback.started_at.astimezone(UTC).replace(tzinfo=None),
    }
    done = {row.pop("session_id"): row for row in warehouse.query(_DONE, asked).to_dicts()}
    earned = {(session, model): reward for session, model, reward in warehouse.query(_EARNED, asked).iter_rows()}
    names = stored_names(session_keys, done)
    sessions = []
    for told in warehouse.query(_TOLD, asked).iter_rows(named=True):
        name = names.get(told["session_id"])
        facts = {"is_known": name is not None, "reward": earned.get((name, told["model_id"]))}
        sessions.append({**(_NOTHING_DONE if name is None else done[name]), **facts, **told})
    return sessions


def _reason(text: str) -> str:
    """The reason's word; whoever found a fence may have written more than that."""
    return next((known for known in _WHAT_WENT_BADLY if known in text), text)


def _is_bad(row: Mapping[str, Any], column: str, limit: float) -> bool | None:
    """Whether a session went badly; None where nobody can tell."""
    if column == "feedback":
        return row["feedback"] == "negative" if row["feedback"] else None
    if column == "reward":
        return row["reward"] < limit if row["reward"] is not None else None
    return bool(row["failed"])


def _values(row: Mapping[str, Any]) -> dict[str, list[str]]:
    # A request that failed has told no tokens: then only the agent knows.
    tokens = max(row["context_tokens"] or 0, row["total_tokens"] or 0)
    return {
        "domain": [row["domain"]] if row["domain"] else [],
        "tool": row["tools"] or [],
        "context length": [context_bucket(tokens)] if tokens else [],
        "agent": [row["agent_id"]] if row["agent_id"] else [],
        "hour": [f"{row['stream_time']:%Y-%m-%d %H}h"],
    }


def context_bucket(tokens: int) -> str:
    """How long a context is, in words."""
    return next((name for limit, name in CONTEXT_BUCKETS if tokens < limit), LONGEST_CONTEXT)


def _overall(sessions: list[Session]) -> Slice:
    candidate = [session.is_bad for session in sessions if session.is_candidate]
    control = [session.is_bad for session in sessions if not session.is_candidate]
    counted = Slice(ALL, "", len(candidate), sum(candidate), len(control), sum(control))
    return replace(counted, p_value=excess_p_value(counted))


def _failures(rows: list[dict[str, Any]], model_id: str) -> dict[str, int]:
    """How the model's sessions failed, the most frequent first."""
    kinds = [row["failure"] for row in rows if row["model_id"] == model_id and row["failure"]]
    return dict(sorted(((kind, kinds.count(kind)) for kind in set(kinds)), key=lambda each: (-each[1], each[0])))


def _finding(worst: Slice | None, failures: Mapping[str, int], column: str) -> Finding:
    return next(FINDINGS[key] for key in _keys(worst, failures, column) if key in FINDINGS)


def _keys(worst: Slice | None, failures: Mapping[str, int], column: str) -> Iterator[tuple[str, str]]:
    """What to look up, the most particular first."""
    if worst is not None:
        special = "long" if worst.value in LONG_CONTEXTS else "short"
        yield worst.dimension, special if worst.dimension == "context length" else ""
    if column == "failed":
        yield "failure", next(iter(failures), "")
        yield "failure", ""
    yield "", ""


def _median(values: Iterator[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
