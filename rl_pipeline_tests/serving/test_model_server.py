"""The embedded model server as a process: what an OpenAI client may ask of it."""

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

MESSAGES = [{"role": "user", "content": "look around"}]


class Server:
    """A child that ends with the pipe it was given."""

    def __init__(self, model: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rl_pipeline.serving.model_server", "--model", str(model), "--name", "tiny"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == [b"ready"]
        self.port = int(words[1])

    def end(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(30)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def chat(self, **asked: Any) -> Any:
        status, content = self.call("POST", "/v1/chat/completions", {"messages": MESSAGES, **asked})
        assert status == 200, content
        return json.loads(content)

    def stream(self, **asked: Any) -> list[Any]:
        body = {"messages": MESSAGES, "stream": True, **asked}
        status, content = self.call("POST", "/v1/chat/completions", body)
        assert status == 200
        assert content.endswith(b"data: [DONE]\n\n")
        return [json.loads(line[6:]) for line in content.splitlines() if line.startswith(b"data: {")]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model)
    yield running
    assert running.end() == 0, "it ends with whoever started it"


def text_of(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_it_answers_as_openai_does(server: Server) -> None:
    answer = server.chat(max_tokens=8, temperature=0)
    assert (answer["object"], answer["model"]) == ("chat.completion", "tiny")
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 1 <= usage["completion_tokens"] <= 8
    assert json.loads(server.call("GET", "/v1/models")[1])["data"][0]["id"] == "tiny"
    assert server.call("GET", "/health")[0] == 200


def test_a_stream_says_the_same_as_a_whole_answer(server: Server) -> None:
    whole = server.chat(max_tokens=30, seed=5)
    events = server.stream(max_tokens=30, seed=5, stream_options={"include_usage": True})
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == text_of(whole)
    assert len(deltas) > 3
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert events[-1]["usage"] == whole["usage"]
    assert len({event["id"] for event in events}) == 1


def test_an_answer_ends_before_a_stop(server: Server) -> None:
    whole = text_of(server.chat(max_tokens=60, seed=5))
    stop = whole[10:13]
    stopped = server.chat(max_tokens=60, seed=5, stop=[stop])
    assert text_of(stopped) == whole[: whole.find(stop)]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    events = server.stream(max_tokens=60, seed=5, stop=stop)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == text_of(stopped)


def test_log_probabilities_are_told_when_asked_for(server: Server) -> None:
    answer = server.chat(max_tokens=5, seed=1, logprobs=True)
    content = answer["choices"][0]["logprobs"]["content"]
    assert all(each["logprob"] < 0 for each in content)
    assert server.chat(max_tokens=5)["choices"][0]["logprobs"] is None


def test_requests_at_once_are_answered_alike(server: Server) -> None:
    with ThreadPoolExecutor(12) as at_once:
        answers = list(at_once.map(lambda _: text_of(server.chat(max_tokens=25, temperature=0)), range(12)))
    assert len(set(answers)) == 1


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"n": 2}, "n"),
        ({"top_p": 0.5}, "top_p"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content"),
        ({"messages": [{"role": "user", "content": "long " * 2000}]}, "tokens"),
    ],
)
def test_what_it_cannot_do_it_refuses_by_name(server: Server, asked: dict[str, Any], named: str) -> None:
    status, content = server.call("POST", "/v1/chat/completions", {"messages": MESSAGES, **asked})
    assert status == 400
    assert named in json.loads(content)["error"]["message"]


def test_text_in_parts_is_text(server: Server) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "look "}, {"type": "text", "text": "around"}]}]
    assert text_of(server.chat(messages=parts, temperature=0, max_tokens=9)) == text_of(
        server.chat(temperature=0, max_tokens=9)
    )
