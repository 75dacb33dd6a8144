"""What stands in the messages of Agent Zero's history."""

import json
from dataclasses import dataclass, field
from typing import Any

_DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """What an answer asks for; an answer that Agent Zero itself had to mend may show none of it."""

    tool_name: str | None = None
    tool_args: dict[str, Any] | None = None
    thoughts: list[str] = field(default_factory=list)


def tool_request(answer: str) -> ToolRequest:
    """Agent Zero's agents answer with one JSON object, sometimes with words around it."""
    try:
        request, _ = _DECODER.raw_decode(answer, answer.index("{"))
    except (ValueError, RecursionError):
        return ToolRequest()
    name, arguments = request.get("tool_name", request.get("tool")), request.get("tool_args", request.get("args"))
    thoughts = request.get("thoughts") or []
    return ToolRequest(
        name if isinstance(name, str) and name else None,
        arguments if isinstance(arguments, dict) else None,
        [str(thought) for thought in (thoughts if isinstance(thoughts, list) else [thoughts])],
    )


def delegates(tool_name: str | None) -> bool:
    """Whether the tool is another agent."""
    return (tool_name or "").partition(":")[0] == "call_subordinate"


def said_by_user(content: Any) -> Any:
    """What the user wrote; as an object if there is more, such as attachments."""
    content = _shown(content)
    if isinstance(content, dict) and content.keys() == {"user_message"}:
        return content["user_message"]
    return content


def tool_result(content: Any) -> tuple[str | None, Any]:
    """The tool's name and what it returned."""
    content = _shown(content)
    if not isinstance(content, dict) or "tool_result" not in content:
        return None, content
    return content.get("tool_name"), _shown(content["tool_result"])


def text_of(content: Any) -> str:
    """Content as text."""
    content = _shown(content)
    if isinstance(content, dict) and isinstance(content.get("user_message"), str):
        content = content["user_message"]
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)


def _shown(content: Any) -> Any:
    """Of raw content, such as pictures, the words that stand for it."""
    if isinstance(content, dict) and "raw_content" in content:
        return content.get("preview") or "<raw content>"
    return content
