"""ATIF, the Agent Trajectory Interchange Format of Harbor and Terminal-Bench, versions 1.0 to 1.8.

A document has steps of a system, a user and an agent; an agent's step holds its calls and what they returned. Embedded
subagents become trajectories of their own, linked to their superior. Steps that are copied context, and those that no
model wrote (`llm_call_count` 0), are marked as not to be trained on, as the specification demands. It has no field for
rewards: `reward` is read from `extra` and from the `extra` of the final metrics, where people put it, for single
steps from their metrics, and in the directories of Harbor's trials from what the verifier wrote.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from rl_pipeline.collection.formats.atif_steps import exchanges_of_steps, steps_of_exchanges
from rl_pipeline.collection.formats.exchanges import exchanges_of, first_request, turns_of
from rl_pipeline.collection.formats.format import (
    CARRIED,
    UNKNOWN_MODEL,
    Layout,
    NotOfFormat,
    Origin,
    all_readable,
    carried_of,
    make_trajectory,
    original,
    outcome,
    source_of,
)
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_cost,
    as_count,
    as_list,
    as_moment,
    as_name,
    as_number,
    as_object,
    as_text,
    filled,
    without,
)

NAME = "atif"
WRITTEN_VERSION = "ATIF-v1.7"


class Atif:
    """Documents of ATIF."""

    name = NAME
    layout: Layout = "files"
    suffix = ".json"
    members = False

    def fits(self, record: Any) -> bool:
        """See `Format.fits`."""
        if not isinstance(record, dict) or not isinstance(record.get("steps"), list):
            return False
        is_named = as_text(record.get("schema_version")).upper().startswith("ATIF")
        return is_named or ("agent" in record and all("source" in as_object(step) for step in record["steps"][:3]))

    def groups(self, record: Any) -> Iterable[tuple[str, Any]]:  # noqa: ARG002 - a format's signature
        """Each is a trajectory."""
        return ()

    def read(self, record: Any, origin: Origin) -> Iterator[JsonObject]:
        """See `Format.read`."""
        yield from self._read(record, origin, parent=None, session_id=None)

    def write(self, trajectory: JsonObject) -> Iterable[Any]:
        """See `Format.write`."""
        source, metadata, task = source_of(trajectory, NAME), trajectory["metadata"], trajectory["task_context"]
        extra, is_own = as_object(source.get("extra")), bool(source)
        if not is_own:
            extra = filled({"reward": task.get("reward"), "task_status": task.get("task_status")})
            source = {"schema_version": WRITTEN_VERSION, "session_id": trajectory["session_id"]}
            source |= {"trajectory_id": trajectory["trajectory_id"], "agent": _agent(trajectory)}
            source |= {"final_metrics": metrics} if (metrics := _final_metrics(metadata)) else {}
        steps = steps_of_exchanges(*exchanges_of(trajectory["turns"]), is_own=is_own)
        yield source | {"steps": steps, "extra": extra | {CARRIED: carried_of(trajectory, NAME)}}

    def name_of(self, trajectory: JsonObject) -> str:
        """Its id."""
        return str(trajectory["trajectory_id"])

    def _read(self, record: Any, origin: Origin, parent: str | None, session_id: str | None) -> Iterator[JsonObject]:
        if not isinstance(record, dict) or not isinstance(record.get("steps"), list):
            raise NotOfFormat("it has no list `steps`: an ATIF document is expected")
        extra, agent = as_object(record.get("extra")), as_object(record.get("agent"))
        if origin.reward is not None and parent is None:
            extra = {"reward": origin.reward, **extra}
        document = without(record, ("steps", "subagent_trajectories", "extra"))
        source = document | ({"extra": more} if (more := without(extra, [CARRIED])) else {})
        told = source | {"steps": record["steps"], CARRIED: extra.get(CARRIED)}
        origin = original(origin, told)
        times = [moment for step in record["steps"] if (moment := as_moment(as_object(step).get("timestamp")))]
        exchanges, after = exchanges_of_steps(record["steps"])
        turns = turns_of(exchanges, after)
        final, session_id = as_object(record.get("final_metrics")), as_name(record.get("session_id")) or session_id
        totals = _totals(final, [as_object(exchange.rest.get("metrics")) for exchange in exchanges])
        rewards = (as_number(place.get("reward")) for place in (extra, as_object(final.get("extra"))))
        models = (as_name(exchange.rest.get("model_name")) for exchange in exchanges)
        made = make_trajectory(
            NAME,
            told,
            origin,
            turns=turns,
            task={
                "instructions": first_request(turns),
                "task_id": as_name(extra.get("task_id")) or as_name(extra.get("task_name")),
                **outcome(next((reward for reward in rewards if reward is not None), None)),
            },
            metadata={
                "model": as_name(agent.get("model_name")) or next(filter(None, models), None),
                "framework": as_name(agent.get("name")),
                "parent_trajectory_id": parent,
                **totals,
            },
            source=source,
            session_id=session_id,
            agent_id=as_name(agent.get("name")),
            own_id=record.get("trajectory_id"),
            start=min(times, default=None),
            end=max(times, default=None),
        )
        yield made
        yield from all_readable(
            (f"subagent {number}", self._read(child, origin, made["trajectory_id"], session_id))
            for number, child in enumerate(as_list(record.get("subagent_trajectories")), start=1)
        )


def _totals(final: JsonObject, steps: list[JsonObject]) -> JsonObject:
    def total(name: str, of_a_step: str) -> float | None:
        told = as_cost(final.get(name))
        parts = [amount for step in steps if (amount := as_cost(step.get(of_a_step))) is not None]
        return told if told is not None else sum(parts) if parts else None

    prompt = as_count(total("total_prompt_tokens", "prompt_tokens"))
    completion = as_count(total("total_completion_tokens", "completion_tokens"))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion if prompt is not None and completion is not None else None,
        "total_cost_usd": total("total_cost_usd", "cost_usd"),
    }


def _agent(trajectory: JsonObject) -> JsonObject:
    metadata = trajectory["metadata"]
    model = metadata.get("model")
    agent = {"name": trajectory["agent_id"], "version": metadata.get("model_version") or UNKNOWN_MODEL}
    return agent | ({"model_name": model} if model and model != UNKNOWN_MODEL else {})


def _final_metrics(metadata: JsonObject) -> JsonObject:
    return filled(
        {
            "total_prompt_tokens": metadata.get("prompt_tokens"),
            "total_completion_tokens": metadata.get("completion_tokens"),
            "total_cost_usd": metadata.get("total_cost_usd"),
        }
    )
