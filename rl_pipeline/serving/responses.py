"""What the gateway itself says: OpenAI's error shape below `/v1`, a message with a next step elsewhere."""

from typing import Any

import orjson
from aiohttp import web

_JSON = {"Content-Type": "application/json"}


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Content as JSON."""
    return web.Response(status=status, body=orjson.dumps(content), headers={**_JSON, **(headers or {})})


def openai_error(
    status: int, kind: str, message: str, *, code: str | None = None, headers: dict[str, str] | None = None
) -> web.Response:
    """As OpenAI's clients read it."""
    return json_response(openai_error_content(kind, message, code), status, headers)


def openai_error_content(kind: str, message: str, code: str | None = None) -> dict[str, Any]:
    """The shape of OpenAI's errors."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def refusal(status: int, text: str) -> web.Response:
    """`text` says what is wrong and, behind a colon, what to do next."""
    message, _, next_step = text.partition(": ")
    return json_response({"error": {"message": message, "next_step": next_step}}, status)
