"""What a format is to the importer and the exporter: a way to recognise its records, to read and to write them.

Three things are the same in all formats. The id of a trajectory comes from the record's content, so a file that is
imported twice is stored once. Times that a format does not tell come from the file: the run had ended when the file was
last written. And what a record cannot say in its format's own fields travels in one field named `rl_pipeline`, which
other readers of the format pass over: the id, the times, and, for trajectories that came from elsewhere, their task and
metadata.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import PurePath
from typing import Any, Literal, Protocol
from uuid import UUID, uuid5

from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_cost,
    as_moment,
    as_name,
    as_number,
    as_object,
    as_text,
    filled,
    without,
)
from rl_pipeline.errors import PipelineError

CARRIED = "rl_pipeline"
UNKNOWN_MODEL = "unknown"
CHAT_FORMATS = ("openai-messages", "tau-bench", "fireact", "swe-agent")

Layout = Literal["lines", "array", "members", "files"]

_NAMESPACE = UUID("5a7b0d0e-7a53-4d6c-8f0c-6f1f5b0a3c11")


class NotOfFormat(PipelineError):
    """A record is not what its format says; the text says which part."""


@dataclass(frozen=True)
class Origin:
    """Where a record comes from."""

    file: str
    """The file's name with its directory's: formats put the model and the task there."""
    modified: datetime
    """When the file was last written."""
    place: str = ""
    """Where in the file, in words."""
    key: str | None = None
    """The record's name where a file is an object of records."""
    model: str | None = None
    """The model, from whoever imports."""
    reward: float | None = None
    """What a verifier has written beside the file."""

    @property
    def stem(self) -> str:
        """The file's name without directory and suffixes."""
        name = PurePath(self.file).name
        for suffix in (".gz", ".jsonl", ".ndjson", ".json", ".traj"):
            name = name.removesuffix(suffix)
        return name


class Format(Protocol):
    """A format of trajectories."""

    name: str
    layout: Layout
    """How files of it are written."""
    suffix: str
    """Of the files that are written."""
    members: bool
    """Whether a file of it can be an object that holds records by their names."""

    def fits(self, record: Any) -> bool:
        """Whether a record is of this format, by what no other format has."""

    def groups(self, record: Any) -> Iterable[tuple[str, Any]]:
        """The parts of a record, by what parts that make one trajectory have in common; none where it is one itself."""

    def read(self, record: Any, origin: Origin) -> Iterator[JsonObject]:
        """The trajectories of a record, or of a list of parts; those of subordinate agents follow their superior's.

        Raises `NotOfFormat`; the trajectories before it stand.
        """

    def write(self, trajectory: JsonObject) -> Iterable[Any]:
        """The records that tell a trajectory: several only where the format has a record for each event."""

    def name_of(self, trajectory: JsonObject) -> str:
        """The name of its file or member."""


def make_trajectory(
    format_name: str,
    record: Any,
    origin: Origin,
    *,
    turns: list[JsonObject],
    task: JsonObject,
    metadata: JsonObject,
    source: JsonObject,
    session_id: str | None = None,
    agent_id: str | None = None,
    own_id: Any = None,
    named_model: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
) -> JsonObject:
    """A trajectory of the contract. Raises `NotOfFormat` when there are no turns.

    `source` is what the contract has no field for; `own_id` the record's id, which is used if it is a UUID;
    `named_model` the model by the file's name, where the record tells none.
    """
    if not turns:
        raise NotOfFormat("there is nothing in it that an agent wrote: a trajectory needs at least one action")
    carried = as_object(record.get(CARRIED)) if isinstance(record, dict) else {}
    told = as_name(origin.model) or as_name(metadata.get("model"))
    model = told or as_name(named_model) or UNKNOWN_MODEL
    # Not by the file's name: under another, the same record would be imported again.
    identity = trajectory_id(format_name, record, origin, own_id, told or UNKNOWN_MODEL)
    first = as_moment(carried.get("start_timestamp")) or start
    last = as_moment(carried.get("end_timestamp")) or end
    first, last = _timed(turns, first, last, origin.modified)
    made: JsonObject = {
        "trajectory_id": as_name(carried.get("trajectory_id")) or identity,
        "session_id": as_name(carried.get("session_id")) or as_name(session_id) or f"{format_name}:{identity}",
        "agent_id": as_name(carried.get("agent_id")) or as_name(agent_id) or format_name,
        "start_timestamp": first.isoformat(),
        "end_timestamp": last.isoformat(),
        "turns": turns,
        "task_context": filled(task),
        "metadata": filled(metadata | {"model": model})
        | {"source": {"format": format_name, "file": origin.file, **filled({"key": origin.key}), **source}},
    }
    made["metadata"].setdefault("framework", format_name)
    made["metadata"] |= filled({"parent_trajectory_id": carried.get("parent_trajectory_id")})
    if carried.get("subordinate_profile") is not None:
        made["subordinate_profile"] = carried["subordinate_profile"]
    for part in ("task_context", "metadata"):
        if isinstance(carried.get(part), dict):
            made[part] = carried[part]
    return made


def carried_of(trajectory: JsonObject, format_name: str) -> JsonObject:
    """What the field `rl_pipeline` of a record tells."""
    names = ("trajectory_id", "session_id", "agent_id", "start_timestamp", "end_timestamp", "subordinate_profile")
    carried = filled({name: trajectory.get(name) for name in names})
    source = _source(trajectory)
    if is_own(trajectory, format_name):
        parent = trajectory["metadata"].get("parent_trajectory_id")
        return carried | filled({"file": source.get("file"), "key": source.get("key"), "parent_trajectory_id": parent})
    return carried | {"task_context": trajectory["task_context"], "metadata": trajectory["metadata"]}


def source_of(trajectory: JsonObject, format_name: str) -> JsonObject:
    """What a record of this format said beyond the contract; nothing where the trajectory came from elsewhere."""
    return without(_source(trajectory), ("format", "file", "key")) if is_own(trajectory, format_name) else {}


def is_own(trajectory: JsonObject, format_name: str) -> bool:
    """Whether a trajectory was read from this format."""
    return _source(trajectory).get("format") == format_name


def is_chat(trajectory: JsonObject) -> bool:
    """Whether a trajectory was read from chat messages, whose fields its turns then have."""
    return _source(trajectory).get("format") in CHAT_FORMATS


def key_of(trajectory: JsonObject) -> str | None:
    """The name that the record had in its file."""
    return as_name(_source(trajectory).get("key"))


def original(origin: Origin, record: Any) -> Origin:
    """The origin with the names of the file and the member that a record was in before it was written again."""
    carried = as_object(record.get(CARRIED)) if isinstance(record, dict) else {}
    file = as_name(carried.get("file"))
    return replace(origin, file=file, key=as_name(carried.get("key"))) if file else origin


def outcome(reward: Any) -> JsonObject:
    """How a task ended, by a reward of which 1 is success; part of it is a part of the task."""
    value = 1.0 if reward is True else 0.0 if reward is False else reward
    if as_number(value) is None:
        return {}
    if value >= 1 - 1e-6:
        return {"task_status": "success", "reward": reward}
    if value <= 0:
        return {"task_status": "failed", "reward": reward}
    return {"task_status": "partial", "completion_percentage": round(100 * value, 6), "reward": reward}


def all_readable(parts: Iterable[tuple[str, Iterator[JsonObject]]]) -> Iterator[JsonObject]:
    """The trajectories of a record's parts, which are named for people; one that cannot be read holds up no other.

    Raises `NotOfFormat` after the last.
    """
    faults = []
    for name, trajectories in parts:
        try:
            yield from trajectories
        except NotOfFormat as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise NotOfFormat("; ".join(faults))


def reward_written(task: JsonObject, *, is_own: bool) -> JsonObject:
    """A task's reward as a field; where it has none, what its end says, and a null where nobody has judged.

    A record of the format itself (`is_own`) has what else it said of it in its source.
    """
    if task.get("reward") is not None:
        return {"reward": task["reward"]}
    ends = {"success": 1.0, "failed": 0.0}
    return {} if is_own else {"reward": ends.get(as_text(task.get("task_status")))}


def trajectory_id(format_name: str, record: Any, origin: Origin, own_id: Any, model: str) -> str:
    """The id of what a record tells: its own if that is a UUID, else one that its content makes."""
    if isinstance(own_id, str) and len(own_id) == 36:
        with contextlib.suppress(ValueError):
            return str(UUID(own_id))
    content = without(record, [CARRIED]) if isinstance(record, dict) else record
    # Two models may write the same.
    return str(uuid5(_NAMESPACE, json.dumps([format_name, origin.key, model, content], sort_keys=True)))


def _source(trajectory: JsonObject) -> JsonObject:
    return as_object(as_object(trajectory.get("metadata")).get("source"))


def _timed(
    turns: list[JsonObject], start: datetime | None, end: datetime | None, modified: datetime
) -> tuple[datetime, datetime]:
    """Give every turn a time, and return when the first began and the last ended."""
    told = [as_moment(turn.get("timestamp")) for turn in turns]
    lasted = [as_cost(as_object(turn.get("result")).get("execution_time_ms")) or 0.0 for turn in turns]
    known = [moment for moment in told if moment]
    if start is None:
        start = min(known) if known else (end or modified) - _milliseconds(sum(lasted))
    now = start
    for turn, moment, milliseconds in zip(turns, told, lasted, strict=True):
        now = moment or now
        turn["timestamp"] = now.astimezone(UTC).isoformat()
        now += _milliseconds(milliseconds)
    return start.astimezone(UTC), max(start, end or now, *known).astimezone(UTC) if known or end else max(start, now)


def _milliseconds(amount: float) -> timedelta:
    return timedelta(milliseconds=min(amount, 1e12))
