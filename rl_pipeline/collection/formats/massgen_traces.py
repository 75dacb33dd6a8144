"""MassGen's traces: `rl_data/traces/YYYYMMDD/<agent>/trace_*.json`, one trace of six kinds of spans a file.

A prompt, a tool call, content and an act of coordination (a vote, an answer, a restart) are turns. Reasoning is the
thought before the next turn, a reward belongs to the turn before it. A prompt that was answered by a call of a tool and
no word is one turn with that call. `span` of a turn holds what else its span said.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from rl_pipeline.collection.formats.format import (
    CARRIED,
    UNKNOWN_MODEL,
    Layout,
    NotOfFormat,
    Origin,
    carried_of,
    make_trajectory,
    original,
    source_of,
)
from rl_pipeline.collection.formats.massgen_spans import spans_of_turns, turns_of_spans
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_count,
    as_list,
    as_moment,
    as_name,
    as_number,
    as_object,
    as_text,
    without,
)

NAME = "massgen-traces"

# A trace that is `completed` has merely ended: nothing in it says that its task was solved, nor does an agreement.
_STATUS = {"failed": "failed", "running": "abandoned", "abandoned": "abandoned"}
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class MassGenTraces:
    """Traces of MassGen."""

    name = NAME
    layout: Layout = "files"
    suffix = ".json"
    members = False

    def fits(self, record: Any) -> bool:
        """See `Format.fits`."""
        return isinstance(record, dict) and {"trace_id", "spans"} <= record.keys() and isinstance(record["spans"], list)

    def groups(self, record: Any) -> Iterable[tuple[str, Any]]:  # noqa: ARG002 - a format's signature
        """Each is a trajectory."""
        return ()

    def read(self, record: Any, origin: Origin) -> Iterator[JsonObject]:
        """See `Format.read`."""
        if not self.fits(record):
            raise NotOfFormat("it has no `trace_id` with `spans`: a trace file of MassGen is expected")
        origin = original(origin, record)
        turns = turns_of_spans(record["spans"])
        prompts = [as_object(turn.get("span")) for turn in turns]
        models = (as_name(as_object(turn.get("sampling")).get("model_version")) for turn in turns)
        read, written = (
            [count for span in prompts if (count := as_count(span.get(name))) is not None]
            for name in ("input_tokens", "output_tokens")
        )
        yield make_trajectory(
            NAME,
            record,
            origin,
            turns=turns,
            task={
                "instructions": as_text(record.get("task")) or None,
                "task_status": _STATUS.get(as_text(record.get("status"))),
                "reward": as_number(record.get("total_reward")),
            },
            metadata={
                "model": next(filter(None, models), None) or as_name(as_object(record.get("metadata")).get("model")),
                "framework": "massgen",
                "prompt_tokens": sum(read) if read else None,
                "completion_tokens": sum(written) if written else None,
                "total_tokens": sum(read) + sum(written) if read or written else None,
                "parent_trajectory_id": as_name(as_object(record.get("metadata")).get("parent_trace_id")),
                "coordination": _coordination(turns, as_object(record.get("metadata"))),
            },
            source=without(record, ("spans", "agent_id", CARRIED)),
            session_id=as_name(as_object(record.get("metadata")).get("session_id")),
            agent_id=as_name(record.get("agent_id")),
            own_id=record.get("trace_id"),
            start=as_moment(record.get("start_time")),
            end=as_moment(record.get("end_time")),
        )

    def write(self, trajectory: JsonObject) -> Iterable[Any]:
        """See `Format.write`."""
        source, task = source_of(trajectory, NAME), trajectory["task_context"]
        if not source:
            start, end = (as_moment(trajectory[f"{name}_timestamp"]) for name in ("start", "end"))
            began, ended = (moment.timestamp() if moment else 0.0 for moment in (start, end))
            status = status if (status := task.get("task_status")) in ("failed", "abandoned") else "completed"
            source = {"trace_id": trajectory["trajectory_id"], "task": task.get("instructions") or "", "metadata": {}}
            source |= {"start_time": began, "end_time": ended, "duration": ended - began}
            source |= {"total_reward": as_number(task.get("reward")), "status": status}
        model = trajectory["metadata"].get("model", UNKNOWN_MODEL)
        yield {
            **source,
            "agent_id": trajectory["agent_id"],
            "spans": spans_of_turns(trajectory["turns"], trajectory["agent_id"], model),
            CARRIED: carried_of(trajectory, NAME),
        }

    def name_of(self, trajectory: JsonObject) -> str:
        """Its place below `rl_data`."""
        trace = as_name(source_of(trajectory, NAME).get("trace_id")) or trajectory["trajectory_id"]
        return place_of(trace, trajectory["agent_id"], trajectory["start_timestamp"][:10])


def place_of(trace_id: str, agent_id: str, day: str) -> str:
    """Where MassGen looks for a trace below `rl_data`, without the suffix; `day` as in 2026-01-31."""
    trace, agent = (_NOT_A_NAME.sub("_", name).strip(".") or "_" for name in (trace_id, agent_id))
    named = trace if trace.startswith("trace_") else f"trace_{trace}"
    return f"traces/{day.replace('-', '')}/{agent[:100]}/{named}"


def _coordination(turns: list[JsonObject], metadata: JsonObject) -> JsonObject | None:
    """Rounds, votes and restarts, as the rewards for coordination read them."""
    acts = [turn for turn in turns if as_object(turn.get("span")).get("span_type") == "coordination"]
    if not acts:
        return None
    rounds = [count for act in acts if (count := as_count(act["span"].get("coordination_round"))) is not None]
    votes = []
    for act in acts:
        told = as_object(act["action"].get("tool_args"))
        target = next(
            (as_name(told[key]) for key in ("voted_for", "vote_for", "target") if as_name(told.get(key))), None
        )
        if act["action"]["tool_name"] == "vote" and target:
            voter = as_name(told.get("voter")) or as_name(told.get("agent_id"))
            votes.append({"vote_for": target} | ({"agent_id": voter} if voter else {}))
    restarts = sum(act["action"]["tool_name"] == "restart" for act in acts)
    told_rounds: JsonObject = {"rounds": max(rounds)} if rounds else {}
    agreed = metadata.get("consensus")
    told_rounds |= {"consensus": agreed} if isinstance(agreed, bool) else {}
    return {**told_rounds, "restarts": restarts, **({"votes": as_list(votes)} if votes else {})}
