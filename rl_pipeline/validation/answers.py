"""The port to a model under test, and its one adapter: any server that speaks OpenAI's chat completions."""

import http.client
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from rl_pipeline.environments.playing import Message
from rl_pipeline.errors import PipelineError

_THOUGHTS = re.compile(r"^\s*<think>.*?</think>\s*", re.DOTALL)
_LONGEST_PAUSE = 30.0


class ModelUnavailable(PipelineError):
    """The model under test does not answer; nothing is known about it."""


class ModelNotServed(ModelUnavailable):
    """The server runs and does not have the model: a person has to serve it there."""


class Answers(Protocol):
    """A model that can be asked."""

    def answer(
        self, conversations: Sequence[list[Message]], *, max_tokens: int, temperature: float, seeds: Sequence[int]
    ) -> list[str]:
        """What the model says next in each conversation, in their order.

        Each has a seed of its own; where the model honours seeds, the same call gives the same answers. Raises
        `ModelUnavailable` when any of them stays without an answer.
        """
        ...


class _Refusal(Exception):
    """What the server said instead of an answer, and how long to wait before it is asked again; None is for ever."""

    def __init__(self, reason: str, pause: float | None) -> None:
        super().__init__(reason)
        self.pause = pause


@dataclass(frozen=True)
class ChatEndpoint:
    """A model at `<url>/chat/completions`, such as `http://127.0.0.1:8000/v1`: vLLM, Ollama, the gateway, any other.

    A broken connection, 429 and 5xx are tried again, `attempts` times in all, with pauses that double.
    """

    url: str
    model: str
    token: str | None = field(default=None, repr=False)
    at_once: int = 32
    attempts: int = 4
    timeout_seconds: float = 120.0
    pause_seconds: float = 0.5
    knows_tools: bool = True
    """Whether the server takes a tool's messages without calls before them; else the user says what the tool said."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request."""
    only_by_name: bool = False
    """Whether answers have to bear the model's name: servers that answer for every name say nothing about this one."""
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def answer(
        self, conversations: Sequence[list[Message]], *, max_tokens: int, temperature: float, seeds: Sequence[int]
    ) -> list[str]:
        """`at_once` requests at a time, each worker over a connection of its own."""
        requests = [
            self._request(messages, max_tokens, temperature, seed)
            for messages, seed in zip(conversations, seeds, strict=True)
        ]
        answers = [""] * len(requests)
        workers = min(self.at_once, len(requests))

        def work(first: int) -> None:
            with closing(self._connection()) as connection:
                for place in range(first, len(requests), workers):
                    answers[place] = self._ask(connection, requests[place])

        with ThreadPoolExecutor(workers or 1, "answers") as pool:
            list(pool.map(work, range(workers)))
        return answers

    def check_served(self) -> None:
        """See that the server has the model among its own, and that an answer comes from it.

        Raises `ModelNotServed`, and `ModelUnavailable` when nothing is known because the server does not answer.
        """
        try:
            with closing(self._connection()) as connection:
                connection.request("GET", f"{urlsplit(self.url).path.rstrip('/')}/models", headers=self._headers())
                response = connection.getresponse()
                content = response.read()
            if response.status != 200:
                raise ModelUnavailable(f"{self.url}/models answers with status {response.status}: is it running?")
            names = [entry["id"] for entry in json.loads(content)["data"]]
        except (OSError, http.client.HTTPException) as error:
            raise ModelUnavailable(f"{self.url} does not answer ({type(error).__name__}): is it running?") from None
        except (ValueError, LookupError, TypeError):
            raise ModelUnavailable(f"{self.url}/models gives no list of models: is it OpenAI-compatible?") from None
        if not any(self._is_named(name) for name in names):
            raise ModelNotServed(f"{self.url} does not serve a model {self.model!r}")
        self.answer([[{"role": "user", "content": "Hello"}]], max_tokens=1, temperature=0.0, seeds=[0])

    def _is_named(self, name: object) -> bool:
        """Ollama adds a tag to names that have none."""
        return name in (self.model, f"{self.model}:latest")

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def _request(self, messages: Sequence[Message], max_tokens: int, temperature: float, seed: int) -> bytes:
        spoken = [self._spoken(message) for message in messages]
        body = {"model": self.model, "messages": spoken, "max_tokens": max_tokens, "temperature": temperature}
        return json.dumps({**body, "seed": seed, **self.extra}).encode()

    def _spoken(self, message: Message) -> Message:
        if message["role"] == "tool" and not self.knows_tools:
            return {"role": "user", "content": message["content"]}
        return message

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ModelUnavailable(f"{self.url!r} is no address of a model: use one like http://127.0.0.1:8000/v1")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname, parts.port, timeout=self.timeout_seconds)

    def _ask(self, connection: http.client.HTTPConnection, body: bytes) -> str:
        for attempt in range(1, self.attempts + 1):
            try:
                return self._ask_once(connection, body)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                reason, pause = type(error).__name__, 0.0
            except _Refusal as refusal:
                if refusal.pause is None:
                    raise ModelUnavailable(f"{self.model} at {self.url} refuses: {refusal}") from None
                reason, pause = str(refusal), refusal.pause
            if attempt < self.attempts:
                self.sleep(min(_LONGEST_PAUSE, max(pause, self.pause_seconds * 2 ** (attempt - 1))))
        raise ModelUnavailable(
            f"{self.model} at {self.url} does not answer after {self.attempts} attempts ({reason}): is it running?"
        )

    def _ask_once(self, connection: http.client.HTTPConnection, body: bytes) -> str:
        headers = {"Content-Type": "application/json", **self._headers()}
        connection.request("POST", f"{urlsplit(self.url).path.rstrip('/')}/chat/completions", body, headers)
        response = connection.getresponse()
        content = response.read()
        if response.status == 429 or response.status >= 500:
            raise _Refusal(f"status {response.status}", _seconds(response.headers.get("Retry-After")))
        if response.status != 200:
            raise _Refusal(f"status {response.status}, {content[:200].decode(errors='replace')!r}", None)
        try:
            answer = json.loads(content)
            if self.only_by_name and not self._is_named(answer.get("model")):
                other = str(answer.get("model"))[:80]
                raise ModelNotServed(f"{self.url} was asked for {self.model!r} and answered as {other!r}")
            return _text_of(answer["choices"][0]["message"])
        except (ValueError, LookupError, TypeError, AttributeError):
            raise _Refusal("an answer that is no chat completion", None) from None


def _text_of(message: Mapping[str, Any]) -> str:
    """What was said, without thoughts said aloud; calls of tools follow as JSON."""
    text = _THOUGHTS.sub("", message.get("content") or "")
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if not calls:
        return text
    as_json = [{"name": call["name"], "arguments": _arguments(call["arguments"])} for call in calls]
    return f"{text}\n{json.dumps(as_json)}".strip()


def _arguments(written: str) -> Any:
    """As JSON, or as they are: the model wrote them, so what is wrong with them is for the scorer to see."""
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return written


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
