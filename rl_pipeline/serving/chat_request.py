"""What of OpenAI's chat completions the embedded model server understands; the rest it refuses by name."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

# Asked for with any other value, these would silently be left undone.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "top_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
}


class RequestInvalid(Exception):
    """The request is at fault; `code` as OpenAI names it."""

    def __init__(self, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.code = code


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str
    content: Any = None


class _Options(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """Clients send `null` for what they leave to the server."""
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class _StreamOptions(_Options):
    include_usage: bool = False


class ChatRequest(_Options):
    """A request for one answer; an option that is `null` has its default."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    given_messages: Annotated[list[_Message], Field(alias="messages", min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    asked_tokens: Annotated[int | None, Field(alias="max_tokens", ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    given_stop: Annotated[str | list[str] | None, Field(alias="stop")] = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    logprobs: bool = False
    return_token_ids: bool = False
    """As vLLM names it: `token_ids` of the choice and `prompt_token_ids` of the answer, where it is no stream."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """With plain text as content. Raises `RequestInvalid`."""
        return [{**message.model_dump(), "content": _text(message.content)} for message in self.given_messages]

    @property
    def max_tokens(self) -> int | None:
        """The most that may be written."""
        return self.max_completion_tokens or self.asked_tokens

    @property
    def stop(self) -> Sequence[str]:
        """Texts before which an answer ends."""
        stops = [self.given_stop] if isinstance(self.given_stop, str) else self.given_stop or []
        return [stop for stop in stops if stop]

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


def parse_chat_request(body: bytes) -> ChatRequest:
    """Raises `RequestInvalid`."""
    try:
        asked = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise RequestInvalid(f"{where}: {first['msg']}") from None
    if asked.stream and asked.return_token_ids:
        raise RequestInvalid("return_token_ids is not supported in a stream here: leave one of them out")
    for name, value in (asked.model_extra or {}).items():
        if value not in _NEUTRAL.get(name, (value,)):
            raise RequestInvalid(f"{name} is not supported here: leave it out, or serve the model elsewhere")
    return asked


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text", "") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(parts):
        raise RequestInvalid("content other than text is not supported here: send text")
    return "".join(map(str, texts))
