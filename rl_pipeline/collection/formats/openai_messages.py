"""OpenAI's chat messages, one conversation a record: `{"messages": [...], "tools": [...], ...}`, or a list of messages.

Beside the messages, fields that loggers and datasets use are read where they are: `model`, `temperature`, `usage`,
`tools`, `created`, `id`, `user`, and `reward`, `score` or `success` for how it ended.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from rl_pipeline.collection.formats.chat import exchanges_of_messages, messages_of_exchanges
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
    filled,
    without,
)

NAME = "openai-messages"
_IS_LIST = "is_list"


class OpenAIMessages:
    """Conversations as lines of JSON."""

    name = NAME
    layout: Layout = "lines"
    suffix = ".jsonl"
    members = False

    def fits(self, record: Any) -> bool:
        """See `Format.fits`."""
        messages = as_list(record.get("messages") if isinstance(record, dict) else record)
        return bool(messages) and all(isinstance(item, dict) and "role" in item for item in messages[:3])

    def groups(self, record: Any) -> Iterable[tuple[str, Any]]:  # noqa: ARG002 - a format's signature
        """Each is a trajectory."""
        return ()

    def read(self, record: Any, origin: Origin) -> Iterator[JsonObject]:
        """See `Format.read`."""
        told: JsonObject = {"messages": record} if isinstance(record, list) else record
        if not isinstance(told, dict) or not isinstance(told.get("messages"), list):
            raise NotOfFormat("it has no list `messages`: one conversation a line is expected")
        origin = original(origin, record)
        turns = turns_of(*exchanges_of_messages(told["messages"]))
        source = without(told, ("messages", CARRIED))
        if isinstance(record, list) or as_object(told.get(CARRIED)).get(_IS_LIST):
            source[_IS_LIST] = True
        reward = next(
            (told[name] for name in ("reward", "score", "success") if as_number(told.get(name)) is not None), None
        )
        tools = [as_name(as_object(as_object(tool).get("function")).get("name")) for tool in as_list(told.get("tools"))]
        if tools and turns:
            turns[0]["observation"]["context"] = {"available_tools": [tool for tool in tools if tool]}
        yield make_trajectory(
            NAME,
            record,
            origin,
            turns=turns,
            task={
                "task_id": as_name(told.get("task_id")),
                "instructions": first_request(turns),
                "group_id": as_name(told.get("group_id")),
                "user_id": as_name(told.get("user")),
                **outcome(reward),
            },
            metadata=_metadata(told),
            source=source,
            session_id=as_name(told.get("session_id")) or as_name(told.get("id")),
            agent_id=as_name(told.get("agent_id")),
            own_id=told.get("id"),
            start=as_moment(told.get("created")),
        )

    def write(self, trajectory: JsonObject) -> Iterable[Any]:
        """See `Format.write`."""
        source = source_of(trajectory, NAME)
        metadata, task = trajectory["metadata"], trajectory["task_context"]
        messages = messages_of_exchanges(*exchanges_of(trajectory["turns"]), is_chat=is_chat(trajectory))
        if not is_own(trajectory, NAME):
            source = filled(
                {
                    "model": metadata.get("model"),
                    "temperature": metadata.get("temperature"),
                    "reward": task.get("reward"),
                    "usage": _usage(metadata) or None,
                }
            )
        # A list has no place for what a record carries: it becomes an object, and says so.
        carried = carried_of(trajectory, NAME) | {name: True for name in (_IS_LIST,) if name in source}
        yield {"messages": messages, **without(source, [_IS_LIST]), CARRIED: carried}

    def name_of(self, trajectory: JsonObject) -> str:
        """Its id."""
        return str(trajectory["trajectory_id"])


def _metadata(told: JsonObject) -> JsonObject:
    usage, temperature = as_object(told.get("usage")), as_cost(told.get("temperature"))
    prompt = as_count(usage.get("prompt_tokens", usage.get("input_tokens")))
    completion = as_count(usage.get("completion_tokens", usage.get("output_tokens")))
    total = as_count(usage.get("total_tokens"))
    if total is None and prompt is not None and completion is not None:
        total = prompt + completion
    return {
        "model": as_name(told.get("model")),
        "temperature": temperature if temperature is not None and temperature <= 2 else None,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": total,
        "total_cost_usd": as_cost(told.get("cost")),
    }


def _usage(metadata: JsonObject) -> JsonObject:
    return filled({name: metadata.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")})
