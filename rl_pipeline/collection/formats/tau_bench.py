"""tau-bench's results: a list of `{task_id, trial, reward, info, traj}`, where `traj` are OpenAI's chat messages.

Which model played stands in the name of the file alone, which domain in the agent's policy, its first message. Agents
of the strategies `act` and `react` call tools in words: `Action:` and the call as JSON. What tau2-bench writes is read
too (`tau_simulations.py`).
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from rl_pipeline.collection.formats.chat import exchanges_of_messages, messages_of_exchanges, read_call
from rl_pipeline.collection.formats.exchanges import Call, exchanges_of, first_request, turns_of
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
    outcome,
    reward_written,
    source_of,
)
from rl_pipeline.collection.formats.tau_simulations import is_simulated, read_simulated, write_simulated
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_cost,
    as_list,
    as_name,
    as_number,
    as_object,
    as_text,
    plain_text,
    without,
)

NAME = "tau-bench"

_RUN = re.compile(
    r"(?:tool-calling|act|react|few-shot)-(?P<model>.+)-(?P<temperature>\d+(?:\.\d+)?)_range_-?\d+--?\d+_"
)
_KEPT = re.compile(r"(?P<model>.+?)[-_](?:airline|retail)\b")
_ACTION = re.compile(r"(?:Thought:\s*(?P<thought>.*?)\s*)?Action:\s*(?P<call>\{.*\})\s*\Z", re.DOTALL)


class TauBench:
    """Results of tau-bench."""

    name = NAME
    layout: Layout = "array"
    suffix = ".json"
    members = False

    def fits(self, record: Any) -> bool:
        """See `Format.fits`."""
        is_result = isinstance(record, dict) and {"task_id", "traj", "reward"} <= record.keys() and "gt" not in record
        return is_result or is_simulated(record)

    def groups(self, record: Any) -> Iterable[tuple[str, Any]]:  # noqa: ARG002 - a format's signature
        """Each is a trajectory."""
        return ()

    def read(self, record: Any, origin: Origin) -> Iterator[JsonObject]:
        """See `Format.read`."""
        if is_simulated(record):
            yield from read_simulated(NAME, record, origin)
            return
        if not isinstance(record, dict) or not isinstance(record.get("traj"), list):
            raise NotOfFormat("it has no list `traj`: tau-bench writes a list of results")
        info = as_object(record.get("info"))
        if not record["traj"] and info.get("error"):
            raise NotOfFormat("the run broke off before the agent did anything: info.error says why")
        origin = original(origin, record)
        turns = turns_of(*exchanges_of_messages(record["traj"], failed=_failed, text_call=_text_call))
        domain, trial = _domain(record["traj"], origin), record.get("trial")
        task = "-".join(filter(None, (NAME, domain, as_name(record.get("task_id")))))
        model, temperature = _played_by(origin)
        is_judged = as_number(record.get("reward")) is not None
        yield make_trajectory(
            NAME,
            record,
            origin,
            turns=turns,
            task={
                "task_id": as_name(task),
                "group_id": as_name(task),
                "task_type": "-".join(filter(None, (NAME, domain))),
                "instructions": first_request(turns),
                "user_id": as_name(as_object(info.get("task")).get("user_id")),
                **outcome(record.get("reward")),
            },
            metadata={"temperature": temperature},
            source=without(record, ("traj", CARRIED, *(["reward"] if is_judged else []))),
            session_id=f"{task}-trial-{trial}" if as_name(trial) else task,
            named_model=model,
        )

    def write(self, trajectory: JsonObject) -> Iterable[Any]:
        """See `Format.write`."""
        source, task = source_of(trajectory, NAME), trajectory["task_context"]
        chat, own = is_chat(trajectory), is_own(trajectory, NAME)
        messages = messages_of_exchanges(*exchanges_of(trajectory["turns"]), is_chat=chat, in_words=own)
        record = write_simulated(source, messages) or {
            "task_id": task.get("task_id"),
            **reward_written(task, is_own=own),
            **({} if own else {"info": {}, "trial": 0}),
            "traj": messages,
            **source,
        }
        yield record | {CARRIED: carried_of(trajectory, NAME)}

    def name_of(self, trajectory: JsonObject) -> str:
        """Its id."""
        return str(trajectory["trajectory_id"])


def _failed(content: str) -> bool:
    """Its tools say so by their first word."""
    return content.startswith("Error")


def _text_call(text: str) -> tuple[list[str], Call] | None:
    found = _ACTION.search(text)
    if not found:
        return None
    try:
        written = json.loads(found["call"])
    except (ValueError, RecursionError):
        return None
    if not as_text(as_object(written).get("name")) or written["name"] == "respond":
        return None
    call = read_call({"name": written["name"], "arguments": as_object(written.get("arguments"))})
    return [found["thought"]] if found["thought"] else [], call


def _domain(messages: list[Any], origin: Origin) -> str | None:
    policy = plain_text(as_object(next(iter(as_list(messages)), None)).get("content"))[:200].lower()
    places = (policy, origin.stem.lower())
    return next((domain for place in places for domain in ("airline", "retail", "telecom") if domain in place), None)


def _played_by(origin: Origin) -> tuple[str | None, float | None]:
    run = _RUN.match(origin.stem)
    if run:
        temperature = as_cost(float(run["temperature"]))
        return run["model"], temperature if temperature is not None and temperature <= 2 else None
    kept = _KEPT.match(origin.stem)
    return (kept["model"] if kept else None), None
