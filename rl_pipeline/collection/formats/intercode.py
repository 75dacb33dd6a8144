"""InterCode's logs: an object of episodes by the number of their task, each with a `turn_history` of parallel lists.

The lists are `actions`, `observations`, `rewards` and `valid_action`, and `thoughts` with some policies. An episode
that was blocked has an action and a reward more than observations. What people played has a `trajectory` of single
steps instead. The model stands in the name of the file, or in that of its directory; newer scripts write how they were
called before the episodes (`meta` and `logs`), and each episode then has its `meta`.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from rl_pipeline.collection.formats.commands import (
    carried_tools,
    one_call_each,
    read_command,
    tools_of,
    written_command,
)
from rl_pipeline.collection.formats.exchanges import Call, Exchange, Returned, exchanges_of, turns_of
from rl_pipeline.collection.formats.format import (
    CARRIED,
    Layout,
    NotOfFormat,
    Origin,
    all_readable,
    carried_of,
    is_own,
    key_of,
    make_trajectory,
    original,
    outcome,
    source_of,
)
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_list,
    as_name,
    as_number,
    as_object,
    as_text,
    filled,
    plain_text,
    without,
)

NAME = "intercode"

_FILE = re.compile(r"(?:ic_)?[a-z0-9]+_(?P<played>.+?)[-_]\d+_turns")
_STRATEGY = re.compile(r"(?:multiturn|react|plan_solve_refine|plan_solve|try_again)(?:_|\Z)")
_MODEL = re.compile(r"gpt|bison|davinci|claude|gemini|llama|mistral|palm|qwen|starchat|vicuna|human", re.IGNORECASE)
_LISTS = ("actions", "observations", "rewards", "valid_action", "thoughts")


class InterCode:
    """Logs of InterCode."""

    name = NAME
    layout: Layout = "members"
    suffix = ".json"
    members = True

    def fits(self, record: Any) -> bool:
        """See `Format.fits`."""
        if not isinstance(record, dict):
            return False
        is_stepwise = as_text(record.get("environment")).startswith("ic_") and isinstance(
            record.get("trajectory"), list
        )
        return is_stepwise or isinstance(record.get("turn_history"), dict) or bool(_logged(record))

    def groups(self, record: Any) -> Iterable[tuple[str, Any]]:  # noqa: ARG002 - a format's signature
        """Each is a trajectory."""
        return ()

    def read(self, record: Any, origin: Origin) -> Iterator[JsonObject]:
        """See `Format.read`."""
        if not self.fits(record):
            raise NotOfFormat("it has no `turn_history`: InterCode writes an object of episodes by their task's number")
        if not {"turn_history", "trajectory"} & record.keys():
            yield from all_readable(
                (f'key "{key}"', self.read({**as_object(one), "meta": record.get("meta")}, replace(origin, key=key)))
                for key, one in _logged(record).items()
            )
            return
        origin = original(origin, record)
        is_stepwise = "turn_history" not in record
        history = _lists_of(record["trajectory"]) if is_stepwise else record["turn_history"]
        summary = as_object(record.get("summary"))
        environment = as_text(record.get("environment"))
        tool = environment.removeprefix("ic_") or NAME
        lists = {name: as_list(history.get(name)) for name in _LISTS}
        exchanges = [_exchange(number, action, tool, lists) for number, action in enumerate(lists["actions"])]
        for exchange, called in zip(exchanges, carried_tools(record), strict=False):
            exchange.calls = read_command(called, exchange.text or "")
        if exchanges and record.get("query") is not None:
            exchanges[0].shown = [{"role": "user", "content": record["query"]}]
        rewards = [reward for reward in map(as_number, lists["rewards"]) if reward is not None]
        best = as_number(summary.get("max_reward", record.get("reward")))
        dataset = PurePosixPath(as_text(record.get("dataset"))).stem
        task = ":".join(filter(None, (environment or NAME, dataset, as_name(record.get("task_id")) or origin.key)))
        yield make_trajectory(
            NAME,
            record,
            origin,
            turns=turns_of(exchanges),
            task={
                "task_id": as_name(task),
                "group_id": as_name(task),
                "task_type": as_name(environment),
                "domain": "coding",
                "instructions": plain_text(record.get("query")) or None,
                **outcome(best if best is not None else max(rewards, default=None)),
            },
            metadata={"model": as_name(as_object(record.get("meta")).get("model"))},
            source=without(record, ("turn_history", "trajectory", "query", CARRIED))
            | ({"is_stepwise": True} if is_stepwise else _left_over(history, len(exchanges))),
            session_id=as_name(task),
            named_model=_model(origin),
        )

    def write(self, trajectory: JsonObject) -> Iterable[Any]:
        """See `Format.write`."""
        source, task = source_of(trajectory, NAME), trajectory["task_context"]
        exchanges, _ = exchanges_of(trajectory["turns"])
        query = plain_text(exchanges[0].shown[-1].get("content")) if exchanges[0].shown else task.get("instructions")
        own, carried = is_own(trajectory, NAME), carried_of(trajectory, NAME)
        exchanges = exchanges if own else one_call_each(exchanges)
        history = _history(exchanges, is_own=own)
        for name, items in as_object(source.get("left_over")).items():
            history[name] = [*history.get(name, []), *items] if name in _LISTS and isinstance(items, list) else items
        record: JsonObject = {}
        if not own:
            rewards = [reward for reward in map(as_number, history.get("rewards", [])) if reward is not None]
            best = max(rewards, default=as_number(task.get("reward")))
            record = {"environment": as_name(task.get("task_type")) or NAME, "task_id": task.get("task_id")}
            record["summary"] = {"max_reward": best, "turns_taken": len(exchanges)}
            carried |= tools_of(exchanges)
        record |= without(source, ["left_over"])
        record |= {} if query is None else {"query": query}
        if record.pop("is_stepwise", False):
            seen = [returned.content if returned else None for returned in (each.returned[0] for each in exchanges)]
            pairs = zip(history["actions"], seen, strict=True)
            record["trajectory"] = [{"action": action, "observation": told} for action, told in pairs]
        else:
            record["turn_history"] = history
        yield record | {CARRIED: carried}

    def name_of(self, trajectory: JsonObject) -> str:
        """The number of its task, or its id."""
        return key_of(trajectory) or str(trajectory["trajectory_id"])


def _logged(record: JsonObject) -> JsonObject:
    """The episodes of a file that says first how they came about."""
    logs = as_object(record.get("logs"))
    is_meant = "meta" in record and any(isinstance(as_object(one).get("turn_history"), dict) for one in logs.values())
    return logs if is_meant else {}


def _exchange(number: int, action: Any, tool: str, lists: dict[str, list[Any]]) -> Exchange:
    def told(name: str) -> Any:
        return lists[name][number] if number < len(lists[name]) else None

    written = action if isinstance(action, str) else None
    seen = told("observations")
    thought = told("thoughts")
    turn = {name: told(name) for name in ("rewards", "valid_action") if number < len(lists[name])}
    return Exchange(
        text=written,
        thoughts=[thought] if isinstance(thought, str) else [],
        calls=[Call(tool, {"command": action if action is not None else ""}, rest=_rest_of(action))],
        returned=[
            None if seen is None else Returned(seen, failed=turn.get("valid_action") is False and isinstance(seen, str))
        ],
        turn={"reward" if name == "rewards" else name: value for name, value in turn.items()},
    )


def _rest_of(action: Any) -> JsonObject:
    return {"is_null": True} if action is None else {}


def _lists_of(steps: list[Any]) -> JsonObject:
    """Steps as the lists that other episodes have."""
    if not all(isinstance(step, dict) and step.keys() == {"action", "observation"} for step in steps):
        raise NotOfFormat("a step of `trajectory` is not an action with its observation: mend it")
    return {"actions": [step["action"] for step in steps], "observations": [step["observation"] for step in steps]}


def _model(origin: Origin) -> str | None:
    """The model, by the name of the file, or of its directory if that is one of a model."""
    named = _FILE.match(origin.stem)
    played = _STRATEGY.sub("", named["played"], count=1) if named else ""
    directory = PurePosixPath(origin.file).parent.name
    return played or (directory if _MODEL.search(directory) else None)


def _left_over(history: JsonObject, count: int) -> JsonObject:
    """What of the history is in no turn: lists that are longer than the actions or end in nulls, and further fields."""
    left_over = without(history, _LISTS)
    for name in _LISTS:
        items = as_list(history.get(name))
        told = min(count, len(items))
        # Of these, a turn tells a null and nothing at all alike.
        while told and name in ("observations", "thoughts") and items[told - 1] is None:
            told -= 1
        left_over |= {name: items[told:]} if told < len(items) or history.get(name) == [] else {}
    return {"left_over": left_over} if left_over else {}


def _history(exchanges: list[Exchange], *, is_own: bool) -> JsonObject:
    """The lists; what a turn does not tell is a null where a later turn tells it."""
    history: JsonObject = {"actions": []}
    for number, exchange in enumerate(exchanges):
        history["actions"].append(_action(exchange, is_own=is_own))
        returned = exchange.returned[0] if exchange.returned else None
        told = filled({"observations": returned.content if returned else None})
        told |= {"rewards": exchange.turn["reward"]} if "reward" in exchange.turn else {}
        if is_own:
            told |= {"valid_action": exchange.turn["valid_action"]} if "valid_action" in exchange.turn else {}
        elif exchange.calls:
            told["valid_action"] = not (returned and returned.failed)
        told |= {"thoughts": "\n".join(exchange.thoughts)} if exchange.thoughts else {}
        for name, value in told.items():
            items = history.setdefault(name, [])
            items += [None] * (number - len(items)) + [value]
    return history


def _action(exchange: Exchange, *, is_own: bool) -> Any:
    call = exchange.calls[0] if exchange.calls else None
    if call is None:
        return exchange.text or ""
    if not is_own:
        return written_command(call)
    return None if call.rest.get("is_null") else as_object(call.arguments).get("command", "")
