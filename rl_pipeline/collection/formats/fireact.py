"""FireAct's runs: an object of `{reward, em, f1, gt, pred, prompt, traj}` by the number of the question.

`traj` is a list of chat messages, or for models that complete text one text of `Thought:`, `Action:` and
`Observation:`. Task, model, temperature and time stand in the name of the file.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from rl_pipeline.collection.formats.chat import exchanges_of_messages, messages_of_exchanges
from rl_pipeline.collection.formats.exchanges import Call, Exchange, exchanges_of, first_request, turns_of
from rl_pipeline.collection.formats.format import (
    CARRIED,
    Layout,
    NotOfFormat,
    Origin,
    carried_of,
    is_chat,
    is_own,
    key_of,
    make_trajectory,
    original,
    outcome,
    reward_written,
    source_of,
)
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_cost,
    as_moment,
    as_name,
    as_number,
    as_object,
    as_text,
    filled,
    plain_text,
    without,
)

NAME = "fireact"

_FILE = re.compile(
    r"(?P<task>[a-z0-9]+)_[a-z]+_\d+_\d+_(?P<model>.+)_(?P<temperature>\d+(?:\.\d+)?)"
    r"_(?P<date>\d{4}-\d\d-\d\d)-(?P<hour>\d\d)-(?P<minute>\d\d)-(?P<second>\d\d)\Z"
)
# Of other files, only the names of its own tasks say that a model follows.
_SHORT_FILE = re.compile(r"(?P<task>hotpotqa|strategyqa|mmlu|bamboogle|bamgoogle)_(?P<model>.+?)(?:_first\d+)?\Z")
_CALL = re.compile(r"(?:(?:Thought:)?\s*(?P<thought>.*?)\n)?Action: (?P<tool>\w+)\[(?P<input>.*)\]\s*\Z", re.DOTALL)
_STEP = re.compile(r"Thought: ?(?P<said>.*?)\nObservation: ?(?P<seen>.*?)(?:\n(?=Thought:)|\n?\Z)", re.DOTALL)


class FireAct:
    """Runs of FireAct."""

    name = NAME
    layout: Layout = "members"
    suffix = ".json"
    members = True

    def fits(self, record: Any) -> bool:
        """See `Format.fits`."""
        return isinstance(record, dict) and "traj" in record and ("prompt" in record or {"em", "gt"} <= record.keys())

    def groups(self, record: Any) -> Iterable[tuple[str, Any]]:  # noqa: ARG002 - a format's signature
        """Each is a trajectory."""
        return ()

    def read(self, record: Any, origin: Origin) -> Iterator[JsonObject]:
        """See `Format.read`."""
        traj = record.get("traj") if isinstance(record, dict) else None
        if not isinstance(traj, str | list):
            raise NotOfFormat("it has no `traj`: FireAct writes an object of runs by the number of their question")
        origin = original(origin, record)
        told = {"reward": as_number(record.get("reward")), "gt": record.get("gt")}
        source = without(record, ("traj", CARRIED, *filled(told)))
        if isinstance(traj, list):
            exchanges, after = exchanges_of_messages(traj, text_call=_text_call)
        else:
            exchanges, after = _exchanges_of_text(traj)
            source["is_text"] = True
            if _text_of(exchanges, after) != traj:
                source["text"] = traj
            if record.get("traj_by_line") == traj.split("\n"):
                source["traj_by_line"] = True
        turns = turns_of(exchanges, after)
        named = _FILE.match(origin.stem) or _SHORT_FILE.match(origin.stem)
        task = as_object(named and named.groupdict())
        temperature = as_cost(float(task["temperature"])) if task.get("temperature") else None
        name = "-".join(filter(None, (NAME, task.get("task"), origin.key)))
        yield make_trajectory(
            NAME,
            record,
            origin,
            turns=turns,
            task={
                "task_id": name if origin.key else None,
                "group_id": name if origin.key else None,
                "task_type": as_name(task.get("task")),
                "domain": "research",
                "instructions": _question(first_request(turns)),
                "reference_answer": record.get("gt"),
                **outcome(record.get("reward")),
            },
            metadata={"temperature": temperature if temperature is not None and temperature <= 2 else None},
            source=source,
            session_id=name,
            named_model=task.get("model"),
            end=as_moment("{date}T{hour}:{minute}:{second}".format_map(task)) if task.get("date") else None,
        )

    def write(self, trajectory: JsonObject) -> Iterable[Any]:
        """See `Format.write`."""
        source, task = source_of(trajectory, NAME), trajectory["task_context"]
        exchanges, after = exchanges_of(trajectory["turns"])
        own = is_own(trajectory, NAME)
        traj: Any = messages_of_exchanges(exchanges, after, is_chat=is_chat(trajectory), in_words=own)
        if source.get("is_text"):
            traj = source.get("text") or _text_of(exchanges, after)
        record: JsonObject = {
            **reward_written(task, is_own=own),
            **without(source, ("is_text", "text", "traj_by_line")),
            "traj": traj,
            CARRIED: carried_of(trajectory, NAME),
        }
        record |= {"gt": task["reference_answer"]} if "reference_answer" in task else {}
        record |= {} if own else {"prompt": []}
        record |= {"traj_by_line": traj.split("\n")} if source.get("traj_by_line") is True else {}
        yield record

    def name_of(self, trajectory: JsonObject) -> str:
        """The number of its question, or its id."""
        return key_of(trajectory) or str(trajectory["trajectory_id"])


def _text_call(text: str) -> tuple[list[str], Call] | None:
    found = _CALL.search(text)
    if not found or found["tool"].lower() == "finish":
        return None
    thought = as_text(found["thought"]).strip()
    return [thought] if thought else [], Call(found["tool"], {"input": found["input"]})


def _question(request: str | None) -> str | None:
    """The question, out of the frame that instruction-tuned models are given."""
    if request is None:
        return None
    framed = re.search(r"### Instruction:\n(.*?)\n\n### Response:", request, re.DOTALL)
    return (framed[1] if framed else request).strip()


def _exchanges_of_text(text: str) -> tuple[list[Exchange], list[JsonObject]]:
    start = text.find("Thought:")
    asked = text[:start] if start >= 0 else text
    messages: list[JsonObject] = [{"role": "user", "content": asked}]
    for step in _STEP.finditer(text, max(start, 0)) if start >= 0 else ():
        messages.append({"role": "assistant", "content": f"Thought: {step['said']}"})
        messages.append({"role": "user", "content": f"Observation: {step['seen']}"})
    return exchanges_of_messages(messages, text_call=_text_call)


def _text_of(exchanges: list[Exchange], after: list[JsonObject]) -> str:
    messages = messages_of_exchanges(exchanges, after, in_words=True)
    first, *others = [plain_text(message.get("content")) for message in messages] or [""]
    return first + "".join(f"{text}\n" for text in others)
