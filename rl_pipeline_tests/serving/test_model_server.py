"""The embedded model server as a process: what an OpenAI client may ask of it."""

import asyncio
import http.client
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from safetensors.torch import load_file, save_file

from rl_pipeline.serving.model_server import ModelServer, application
from rl_pipeline.training.program.models import load_tokenizer

MESSAGES = [{"role": "user", "content": "look around"}]


class Server:
    """A child that ends with the pipe it was given."""

    def __init__(self, model: Path, log: IO[bytes] | int = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rl_pipeline.serving.model_server", "--model", str(model), "--name", "tiny"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
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


def test_token_ids_are_told_when_asked_for_each_with_its_log_probability(server: Server) -> None:
    answer = server.chat(max_tokens=60, seed=1, logprobs=True, return_token_ids=True)
    [choice] = answer["choices"]
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"] == len(choice["logprobs"]["content"])
    assert "token_ids" not in server.chat(max_tokens=5)["choices"][0]


def test_requests_at_once_are_answered_alike(server: Server) -> None:
    with ThreadPoolExecutor(12) as at_once:
        answers = list(at_once.map(lambda _: text_of(server.chat(max_tokens=25, temperature=0)), range(12)))
    assert len(set(answers)) == 1


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"n": 2}, "n"),
        ({"stream": True, "return_token_ids": True}, "return_token_ids"),
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


NULLS = [
    "temperature",
    "max_completion_tokens",
    "stop",
    "seed",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "n",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "tools",
    "tool_choice",
    "response_format",
    "user",
]


def test_null_is_the_default(server: Server) -> None:
    whole = server.chat(max_tokens=9, seed=3, **dict.fromkeys(set(NULLS) - {"seed"}))
    assert text_of(whole) == text_of(server.chat(max_tokens=9, seed=3))
    assert text_of(server.chat(max_tokens=None, max_completion_tokens=9, seed=3)) == text_of(whole)
    events = server.stream(max_tokens=9, seed=3, stream_options={"include_usage": None})
    assert "usage" not in events[-1]
    status, content = server.call("POST", "/v1/chat/completions", {"messages": None})
    assert (status, json.loads(content)["error"]["message"]) == (400, "messages: Field required")


@pytest.mark.parametrize("temperature", [1e-40, 1e-8])
def test_a_tiny_temperature_costs_nobody_an_answer(server: Server, temperature: float) -> None:
    likeliest = text_of(server.chat(max_tokens=25, temperature=0))
    with ThreadPoolExecutor(8) as at_once:
        asked = [temperature if number % 2 else 0 for number in range(8)]
        answers = list(at_once.map(lambda each: text_of(server.chat(max_tokens=25, temperature=each)), asked))
    assert set(answers) == {likeliest}


def test_a_token_that_the_model_does_not_know_is_refused_and_nothing_else(tiny_model: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(tiny_model, tmp_path / "model")
    tokenizer = load_tokenizer(directory)
    tokenizer.add_tokens([f"<added {number}>" for number in range(1000)])
    tokenizer.save_pretrained(directory)
    running = Server(directory)
    try:
        beyond = [{"role": "user", "content": "look at <added 999>"}]
        status, content = running.call("POST", "/v1/chat/completions", {"messages": beyond})
        assert (status, "does not know" in json.loads(content)["error"]["message"]) == (400, True)
        assert running.chat(max_tokens=3)["usage"]["completion_tokens"] > 0
        running.process.terminate()
        assert running.process.wait(60) == 0
    finally:
        running.end()


@pytest.fixture
def broken_model(tiny_model: Path, tmp_path: Path) -> Path:
    """A checkpoint whose weights are no numbers."""
    directory = shutil.copytree(tiny_model, tmp_path / "broken")
    weights = directory / "model.safetensors"
    save_file({name: tensor * float("nan") for name, tensor in load_file(weights).items()}, weights, {"format": "pt"})
    return directory


def test_a_server_whose_model_is_broken_ends_and_says_why(broken_model: Path) -> None:
    with (broken_model / "log").open("wb") as log:
        running = Server(broken_model, log)
        assert running.call("POST", "/v1/chat/completions", {"messages": MESSAGES})[0] == 500
        assert running.process.wait(60) == 1, "it ends by itself"
        running.end()
    assert (
        (broken_model / "log")
        .read_text()
        .endswith("the model is broken: NoProbabilities: the model gives no probabilities\n")
    )


def test_the_health_of_a_broken_model_is_bad(broken_model: Path) -> None:
    async def ask() -> None:
        server = ModelServer(broken_model, "broken")
        async with TestClient(TestServer(application(server))) as client:
            assert (await client.get("/health")).status == 200, "nobody knows yet"
            body = {"messages": MESSAGES, "stream": True}
            streamed = await client.post("/v1/chat/completions", json=body)
            assert "the model failed" in await streamed.text()
            await server.broken.wait()
            health = await client.get("/health")
            assert (health.status, (await health.json())["status"]) == (503, "broken")
            assert (await client.post("/v1/chat/completions", json=body)).status == 503

    asyncio.run(asyncio.wait_for(ask(), 120))
