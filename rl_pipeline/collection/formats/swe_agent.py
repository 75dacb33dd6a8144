"""SWE-agent's `.traj` files: `{trajectory, history, info, environment, replay_config}`, one run each.

The steps of `trajectory` are the turns. From `history` come the prompts before the first step and, for models that call
functions, the calls. A file with a history alone is read as the conversation that it is. `query`, the whole prompt of
every step in newer versions, is kept as what it adds to the one before. A run of several attempts of which none was
chosen has `attempts` alone, and each is a trajectory; those beside a chosen one are kept with it. mini-swe-agent has
`messages` alone: commands stand in their words, or are calls of functions.

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
from rl_pipeline.collection.formats.exchanges import Call, exchanges_of, first_request, turns_of
from rl_pipeline.collection.formats.format import (
    CARRIED,
    Layout,
    NotOfFormat,
    Origin,
    all_readable,
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
_ATTEMPT = "attempt"

# How versions before 1.0 named the directory of a run.
_RUN = re.compile(r"(?P<model>.+?)__.+?__t-(?P<temperature>\d+(?:\.\d+)?)__p-")


# How mini-swe-agent wants a command.
_COMMAND = re.compile(r"```(?:bash|mswea_bash_command)\s*\n(.*?)\n```", re.DOTALL)


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
            return any({"action", "observation"} <= as_object(step).keys() for step in steps[:3])
        if _is_mini(record) or _attempts(record):
            return True
        history = as_list(record.get("history"))
        return bool(history) and isinstance(history[0], dict) and "role" in history[0]

    def groups(self, record: Any) -> Iterable[tuple[str, Any]]:  # noqa: ARG002 - a format's signature
        """Each is a trajectory."""
        return ()

    def read(self, record: Any, origin: Origin) -> Iterator[JsonObject]:
        """See `Format.read`."""
        if not self.fits(record):
            raise NotOfFormat("it has neither steps in `trajectory` nor messages in `history`: is it a .traj file?")
        if attempts := _attempts(record):
            around = without(record, ["attempts"])
            yield from all_readable(
                (f"attempt {number}", self.read({**around, **attempt, _ATTEMPT: number}, origin))
                for number, attempt in enumerate(attempts, start=1)
            )
            return
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
            source |= {"history": rest if isinstance(record["history"], list) else None} if "history" in record else {}
        elif _is_mini(record):
            turns = turns_of(*exchanges_of_messages(record["messages"], text_call=_text_call))
            source = without(source, ["messages"]) | {"is_messages": True}
        else:
            turns = turns_of(*exchanges_of_messages(history))
            source["is_history"] = True
            source |= {"trajectory": steps} if "trajectory" in record else {}
        info, agent, statement = as_object(record.get("info")), *_replayed(record.get("replay_config"))
        run = _RUN.match(PurePath(origin.file).parent.name)
        stats, model = as_object(info.get("model_stats")), as_object(agent.get("model")) or _mini_model(info)
        temperature = (
            as_cost(model.get("temperature")) if model else as_cost(float(run["temperature"]) if run else None)
        )
        sent, received = as_count(stats.get("tokens_sent")), as_count(stats.get("tokens_received"))
        task = as_name(statement.get("id")) or as_name(record.get("instance_id")) or as_name(origin.stem)
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
        elif source.get("is_messages"):
            record["messages"] = messages_of_exchanges(exchanges, after, in_words=True)
        elif not source.get("is_history"):
            record["trajectory"] = list(steps_of(exchanges, is_own=True))
        if source.get("is_history") or not own:
            record["history"] = messages_of_exchanges(exchanges, after, is_chat=is_chat(trajectory))
        elif isinstance(source.get("history"), list):
            record["history"] = [*exchanges[0].shown, *source["history"]]
        record = without(source, ("is_history", "is_messages")) | record
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


def _attempts(record: JsonObject) -> list[JsonObject]:
    """The attempts of a run that has nothing else."""
    if as_list(record.get("trajectory")) or as_list(record.get("history")):
        return []
    return [attempt for attempt in as_list(record.get("attempts")) if as_list(as_object(attempt).get("trajectory"))]


def _is_mini(record: JsonObject) -> bool:
    """By its name, which the first versions did not write yet."""
    is_named = as_text(record.get("trajectory_format")).startswith("mini-swe-agent")
    is_named = is_named or "mini_version" in as_object(record.get("info"))
    return is_named and isinstance(record.get("messages"), list)


def _mini_model(info: JsonObject) -> JsonObject:
    """The model of mini-swe-agent's configuration, as SWE-agent names its parts."""
    told = as_object(as_object(info.get("config")).get("model"))
    return {"name": told.get("model_name"), **as_object(told.get("model_kwargs"))} if told else {}


def _text_call(text: str) -> tuple[list[str], Call] | None:
    found = _COMMAND.findall(text)
    if len(found) != 1:
        return None
    thought = text[: text.index("```")].strip().removeprefix("THOUGHT:").strip()
    return [thought] if thought else [], Call("bash", {"command": found[0]})


def _agent(history: list[Any]) -> str | None:
    agents = (as_name(as_object(message).get("agent")) for message in history)
    return next((f"{NAME}-{agent}" for agent in agents if agent), None)


def _status(info: JsonObject) -> str | None:
    ended = as_text(info.get("exit_status"))
    if not ended or ended.lower().startswith("submitted") or info.get("submission"):
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
