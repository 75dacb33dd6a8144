"""tau2-bench's results: `{info, tasks, simulations}`, or a file for each simulation.

A simulation has chat messages, times, costs and a `reward_info`; `info` tells the agent's model and the domain. Each is
a trajectory, and is written again as results of one simulation and its task.
"""

from collections.abc import Iterator
from typing import Any

from rl_pipeline.collection.formats.chat import exchanges_of_messages
from rl_pipeline.collection.formats.exchanges import first_request, turns_of
from rl_pipeline.collection.formats.format import (
    CARRIED,
    NotOfFormat,
    Origin,
    all_readable,
    make_trajectory,
    original,
    outcome,
)
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_cost,
    as_count,
    as_list,
    as_moment,
    as_name,
    as_object,
    without,
)

_MARK = "is_simulation"


def is_simulated(record: Any) -> bool:
    """Whether a record is of tau2-bench."""
    if not isinstance(record, dict):
        return False
    is_whole = isinstance(record.get("simulations"), list) and isinstance(record.get("info"), dict)
    return is_whole or {"task_id", "messages", "termination_reason"} <= record.keys()


def read_simulated(format_name: str, record: JsonObject, origin: Origin) -> Iterator[JsonObject]:
    """The trajectories of results or of one simulation. Raises `NotOfFormat`."""
    if "simulations" not in record:
        yield from _read(format_name, record, None, origin)
        return
    results = without(record, ("simulations", "tasks", CARRIED))
    carried = {CARRIED: record[CARRIED]} if CARRIED in record else {}
    parts = []
    for number, one in enumerate(record["simulations"], start=1):
        task = as_object(one).get("task_id")
        tasks = [known for known in as_list(record.get("tasks")) if as_object(known).get("id") == task]
        around = results | ({"tasks": tasks} if "tasks" in record else {})
        parts.append((f"simulation {number}", _read(format_name, {**as_object(one), **carried}, around, origin)))
    yield from all_readable(parts)


def write_simulated(source: JsonObject, messages: list[JsonObject]) -> JsonObject | None:
    """What `read_simulated` read; None where a trajectory was none of it."""
    if not source.get(_MARK):
        return None
    simulation = {**without(source, (_MARK, "results")), "messages": messages}
    results = source.get("results")
    return {**results, "simulations": [simulation]} if isinstance(results, dict) else simulation


def _read(format_name: str, record: JsonObject, results: JsonObject | None, origin: Origin) -> Iterator[JsonObject]:
    if not isinstance(record.get("messages"), list):
        raise NotOfFormat("it has no list `messages`: what was spoken rather than written is not read")
    origin = original(origin, record)
    turns = turns_of(*exchanges_of_messages(record["messages"]))
    info = as_object(as_object(results).get("info"))
    agent, domain = as_object(info.get("agent_info")), as_object(info.get("environment_info")).get("domain_name")
    temperature = as_cost(as_object(agent.get("llm_args")).get("temperature"))
    names = (format_name, as_name(domain), as_name(record.get("task_id")))
    task, trial = "-".join(filter(None, names)), as_name(record.get("trial"))
    yield make_trajectory(
        format_name,
        record,
        origin,
        turns=turns,
        task={
            "task_id": as_name(task),
            "group_id": as_name(task),
            "task_type": "-".join(filter(None, names[:2])),
            "instructions": first_request(turns),
            **outcome(as_object(record.get("reward_info")).get("reward")),
        },
        metadata={
            "model": as_name(agent.get("llm")),
            "temperature": temperature if temperature is not None and temperature <= 2 else None,
            "total_cost_usd": as_cost(record.get("agent_cost")),
            **_tokens(record["messages"]),
        },
        source=without(record, ("messages", CARRIED))
        | {_MARK: True}
        | ({} if results is None else {"results": results}),
        session_id=f"{task}-trial-{trial}" if trial else task,
        own_id=record.get("id"),
        start=as_moment(record.get("start_time")),
        end=as_moment(record.get("end_time")),
    )


def _tokens(messages: list[Any]) -> JsonObject:
    used = [as_object(one.get("usage")) for one in map(as_object, messages) if one.get("role") == "assistant"]
    told: JsonObject = {}
    for name in ("prompt_tokens", "completion_tokens"):
        counts = [count for usage in used if (count := as_count(usage.get(name))) is not None]
        told |= {name: sum(counts)} if counts else {}
    return told | ({"total_tokens": sum(told.values())} if told else {})
