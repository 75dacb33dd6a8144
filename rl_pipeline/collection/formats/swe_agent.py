"""SWE-agent's `.traj` files: `{trajectory, history, info, environment, replay_config}`, one run each.

The steps of `trajectory` are the turns. From `history` come the prompts before the first step and, for models that call
functions, the calls. A file with a history alone is read as the conversation that it is. `query`, the whole prompt of
every step in newer versions, is kept as what it adds to the one before.

Whether a submission is right is not in the file: only runs that ended without one have failed.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

from rl_pipeline.collection.formats.chat import (
    exchanges_of_messages,
    messages_of_exchanges,
)
from rl_pipeline.collection.formats.commands import carried_tools, one_call_each, read_command, tools_of
from rl_pipeline.collection.formats.exchanges import exchanges_of, first_request, turns_of
from rl_pipeline.collection.formats.format import (
    CARRIED,
    Layout,
    NotOfFormat,
    Origin,
    carried_of,
    is_chat,
    is_own,
    make_trajectory,
    original,
    source_of,
)
from rl_pipeline.collection.formats.swe_agent_steps import calls_of, exchanges_of_steps, split_history, steps_of
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_cost,
    as_count,
    as_list,
    as_name,
    as_number,
    as_object,
    as_text,
    filled,
    without,
)

NAME = "swe-agent"

# How versions before 1.0 named the directory of a run.
_RUN = re.compile(r"(?P<model>.+?)__.+?__t-(?P<temperature>\d+(?:\.\d+)?)__p-")


class SWEAgent:
    """Runs of SWE-agent."""

    name = NAME
    layout: Layout = "files"
    suffix = ".traj"
    members = False

    def fits(self, record: Any) -> bool:
        """See `Format.fits`."""
        if not isinstance(record, dict):
            return False
        steps = as_list(record.get("trajectory"))
        if steps:
            return isinstance(steps[0], dict) and "action" in steps[0] and "observation" in steps[0]
        history = as_list(record.get("history"))
        return bool(history) and isinstance(history[0], dict) and "role" in history[0]

    def groups(self, record: Any) -> Iterable[tuple[str, Any]]:  # noqa: ARG002 - a format's signature
        """Each is a trajectory."""
        return ()

    def read(self, record: Any, origin: Origin) -> Iterator[JsonObject]:
        """See `Format.read`."""
        if not self.fits(record):
            raise NotOfFormat("it has neither steps in `trajectory` nor messages in `history`: is it a .traj file?")
        origin = original(origin, record)
        history, steps = as_list(record.get("history")), as_list(record.get("trajectory"))
        source = without(record, ("trajectory", "history", CARRIED))
        if steps:
            prompts, rest = split_history(history)
            exchanges = list(exchanges_of_steps(steps, calls_of(rest)))
            for step, exchange, called in zip(steps, exchanges, carried_tools(record), strict=False):
                exchange.calls = read_command(called, as_text(step["action"]))
            exchanges[0].shown = prompts
            turns = turns_of(exchanges)
            source |= {"history": rest} if "history" in record else {}
        else:
            turns = turns_of(*exchanges_of_messages(history))
            source["is_history"] = True
            source |= {"trajectory": steps} if "trajectory" in record else {}
        info, agent, statement = as_object(record.get("info")), *_replayed(record.get("replay_config"))
        run = _RUN.match(PurePath(origin.file).parent.name)
        stats, model = as_object(info.get("model_stats")), as_object(agent.get("model"))
        temperature = (
            as_cost(model.get("temperature")) if model else as_cost(float(run["temperature"]) if run else None)
        )
        sent, received = as_count(stats.get("tokens_sent")), as_count(stats.get("tokens_received"))
        task = as_name(statement.get("id")) or as_name(origin.stem)
        yield make_trajectory(
            NAME,
            record,
            origin,
            turns=turns,
            task={
                "task_id": task,
                "group_id": task,
                "task_type": NAME,
                "domain": "coding",
                "instructions": as_text(statement.get("text")) or first_request(turns),
                "task_status": _status(info),
            },
            metadata={
                "model": as_name(model.get("name")),
                "temperature": temperature if temperature is not None and temperature <= 2 else None,
                "prompt_tokens": sent,
                "completion_tokens": received,
                "total_tokens": sent + received if sent is not None and received is not None else None,
                "total_cost_usd": as_cost(stats.get("instance_cost", stats.get("total_cost"))),
            },
            source=source,
            session_id=f"{NAME}:{task}",
            agent_id=_agent(history),
            named_model=run["model"] if run else None,
        )

    def write(self, trajectory: JsonObject) -> Iterable[Any]:
        """See `Format.write`."""
        source, own, carried = source_of(trajectory, NAME), is_own(trajectory, NAME), carried_of(trajectory, NAME)
        exchanges, after = exchanges_of(trajectory["turns"])
        record: JsonObject = {}
        if not own:
            apart = one_call_each(exchanges)
            record["trajectory"] = list(steps_of(apart, is_own=False))
            carried |= tools_of(apart)
        elif not source.get("is_history"):
            record["trajectory"] = list(steps_of(exchanges, is_own=True))
        if source.get("is_history") or not own:
            record["history"] = messages_of_exchanges(exchanges, after, is_chat=is_chat(trajectory))
        elif "history" in source:
            record["history"] = [*exchanges[0].shown, *as_list(source["history"])]
        record |= without(source, ("is_history", "history"))
        if not own:
            record["environment"] = trajectory["metadata"].get("framework")
            record["info"] = {"exit_status": None, "model_stats": _stats(trajectory["metadata"])}
        yield record | {CARRIED: carried}

    def name_of(self, trajectory: JsonObject) -> str:
        """Its id: several runs may be of one task."""
        return str(trajectory["trajectory_id"])


def _replayed(config: Any) -> tuple[JsonObject, JsonObject]:
    """The agent's configuration and the problem; the whole is an object, or JSON text in some versions."""
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            config = None
    told = as_object(config)
    return as_object(told.get("agent")), as_object(told.get("problem_statement"))


def _agent(history: list[Any]) -> str | None:
    agents = (as_name(as_object(message).get("agent")) for message in history)
    return next((f"{NAME}-{agent}" for agent in agents if agent), None)


def _status(info: JsonObject) -> str | None:
    ended = as_text(info.get("exit_status"))
    if not ended or ended.startswith("submitted") or info.get("submission"):
        return None
    return "abandoned" if "forfeit" in ended or "skipped" in ended else "failed"


def _stats(metadata: JsonObject) -> JsonObject:
    return filled(
        {
            "tokens_sent": metadata.get("prompt_tokens"),
            "tokens_received": metadata.get("completion_tokens"),
            "instance_cost": as_number(metadata.get("total_cost_usd")),
        }
    )
