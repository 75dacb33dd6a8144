"""Serves one model from its directory, as OpenAI's chat completions: `python -m rl_pipeline.serving.model_server`.

It says `ready <port>` on its output once it takes requests, and ends with the pipe that is its input. Once its model is
broken (a device that failed, weights that are no numbers) its health says so, and it ends with exit code 1.
"""

import argparse
import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import torch
from aiohttp import web
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, PreTrainedModel

from rl_pipeline.json_logs import write_json_logs
from rl_pipeline.serving.batching import Batch, Broken, Generation, Overloaded
from rl_pipeline.serving.chat_request import ChatRequest, RequestInvalid, parse_chat_request
from rl_pipeline.serving.configuration import LOOPBACK
from rl_pipeline.serving.responses import json_response, openai_error, openai_error_content
from rl_pipeline.serving.spoken_text import SpokenText
from rl_pipeline.serving.stopping import told_to_stop
from rl_pipeline.training.program.generation import Transcript
from rl_pipeline.training.program.models import load_tokenizer
from rl_pipeline.training.program.turn_tokens import TurnTokens

SMALL_PARAMETERS = 10_000_000
"""Up to this size more threads than one cost more than they bring."""
LARGEST_BODY_BYTES = 8 * 2**20
DRAIN_SECONDS = 10.0
LAST_WORDS_SECONDS = 2.0
"""For so long a broken server still says on its health what the matter is."""


class Conversation:
    """One request while it is answered: tokens come from the batch's thread, and are told of in the event loop."""

    def __init__(self, asked: ChatRequest, prompt: list[int], tokens: TurnTokens, room: int) -> None:
        self.asked = asked
        self.spoken = SpokenText(tokens.text_of, asked.stop)
        self.error: Exception | None = None
        self.is_done = False
        self.news = asyncio.Event()
        self.prompt = prompt
        self.drawn: list[tuple[int, float]] = []
        """Every token with its log-probability, the one that ended it too."""
        self._has_ended = False
        self._tokens = tokens
        self._loop = asyncio.get_running_loop()
        transcript = Transcript()
        transcript.read(prompt)
        most = min(asked.max_tokens or room, room)
        self.generation = Generation(transcript, most, asked.temperature, self._take, self._done, asked.seed)

    def _take(self, token: int, logprob: float) -> bool:
        self.drawn.append((token, logprob))
        if token in self._tokens.stop_ids:
            self._has_ended = True
            return True
        self.spoken.add(token)
        self._tell()
        return self.spoken.is_stopped

    def _done(self, error: Exception | None) -> None:
        try:
            self.spoken.finish()
        except Exception as unfinished:  # noqa: BLE001 - the caller is told of it
            error = error or unfinished
        self.error, self.is_done = error, True
        self._tell()

    def _tell(self) -> None:
        self._loop.call_soon_threadsafe(self.news.set)

    @property
    def finish_reason(self) -> str:
        """Why it ended."""
        return "stop" if self._has_ended or self.spoken.is_stopped else "length"

    @property
    def usage(self) -> dict[str, int]:
        """Tokens that were read and written."""
        read, written = len(self.prompt), len(self.drawn)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def logprobs_content(self) -> dict[str, object] | None:
        """As OpenAI tells them, if they were asked for; beside token ids, one for each of those."""
        if not self.asked.logprobs:
            return None
        told = self.drawn
        if self._has_ended and not self.asked.return_token_ids:
            told = told[:-1]
        texts = [(self._tokens.text_of([token]), logprob) for token, logprob in told]
        return {
            "content": [
                {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
                for text, logprob in texts
            ]
        }


class ModelServer:
    """The handlers. Made in the event loop in which `broken` is set when the model is."""

    def __init__(self, directory: Path, name: str) -> None:
        tokenizer = load_tokenizer(directory)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype="auto", device_map=device)
        if device == "cpu" and model.num_parameters() <= SMALL_PARAMETERS:
            torch.set_num_threads(1)
        self.broken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.batch = Batch(model, self._break)
        self._name = name
        self._tokens = TurnTokens(tokenizer, model.generation_config)
        embeddings: Any = model.get_input_embeddings()
        self._vocabulary = int(embeddings.num_embeddings)
        self._context = int(getattr(model.config, "max_position_embeddings", 0) or 2**20)
        self._created = int(time.time())

    def _break(self) -> None:
        self._loop.call_soon_threadsafe(self.broken.set)

    async def health(self, _request: web.Request) -> web.Response:
        """Whether it serves."""
        if self.batch.problem:
            return json_response({"status": "broken", "model": self._name, "problem": self.batch.problem}, 503)
        return json_response({"status": "ok", "model": self._name})

    async def models(self, _request: web.Request) -> web.Response:
        """The one model."""
        model = {"id": self._name, "object": "model", "created": self._created, "owned_by": "rl-pipeline"}
        return json_response({"object": "list", "data": [model]})

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """One answer, whole or as a stream."""
        try:
            conversation = self._conversation(parse_chat_request(await request.read()))
            self.batch.add(conversation.generation)
        except RequestInvalid as invalid:
            return openai_error(400, "invalid_request_error", str(invalid), code=invalid.code)
        except Overloaded:
            return openai_error(503, "overloaded", "too many requests wait: send it again in a moment")
        except Broken:
            return openai_error(503, "server_error", "the model is broken, and its server ends: see its log")
        try:
            if conversation.asked.stream:
                return await self._stream(request, conversation)
            return await self._whole(conversation)
        finally:
            conversation.generation.is_cancelled = True

    def _conversation(self, asked: ChatRequest) -> Conversation:
        try:
            prompt = self._tokens.opening(asked.messages)
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestInvalid(f"the model's template refuses the messages: {error}") from None
        room = self._context - len(prompt)
        if room < 1 or not prompt:
            text = f"the messages have {len(prompt)} tokens and the model reads {self._context}: send less"
            raise RequestInvalid(text, "context_length_exceeded")
        if max(prompt) >= self._vocabulary:  # on a GPU this would break the model for everybody
            raise RequestInvalid("the messages have a token that the model does not know: leave special tokens out")
        return Conversation(asked, prompt, self._tokens, room)

    async def _whole(self, conversation: Conversation) -> web.Response:
        while not conversation.is_done:
            await conversation.news.wait()
            conversation.news.clear()
        if conversation.error:
            return openai_error(500, "server_error", f"the model failed ({type(conversation.error).__name__})")
        choice: dict[str, object] = {
            "index": 0,
            "message": {"role": "assistant", "content": conversation.spoken.text},
            "logprobs": conversation.logprobs_content(),
            "finish_reason": conversation.finish_reason,
        }
        told: dict[str, object] = {"usage": conversation.usage}
        if conversation.asked.return_token_ids:
            choice["token_ids"] = [token for token, _ in conversation.drawn]
            told["prompt_token_ids"] = conversation.prompt
        return json_response(self._envelope("chat.completion", [choice]) | told)

    async def _stream(self, request: web.Request, conversation: Conversation) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        envelope = self._envelope("chat.completion.chunk", [])
        await response.write(_event(envelope | {"choices": [_delta({"role": "assistant", "content": ""})]}))
        told = 0
        while True:
            is_done, text = conversation.is_done, conversation.spoken.safe
            if conversation.error:
                await response.write(_event(openai_error_content("server_error", "the model failed")))
                break
            if len(text) > told:
                await response.write(_event(envelope | {"choices": [_delta({"content": text[told:]})]}))
                told = len(text)
            if is_done:
                last = _delta({}, conversation.finish_reason) | {"logprobs": conversation.logprobs_content()}
                await response.write(_event(envelope | {"choices": [last]}))
                if conversation.asked.includes_usage:
                    await response.write(_event(envelope | {"usage": conversation.usage}))
                await response.write(b"data: [DONE]\n\n")
                break
            await conversation.news.wait()
            conversation.news.clear()
        await response.write_eof()
        return response

    def _envelope(self, kind: str, choices: list[object]) -> dict[str, object]:
        answer_id = f"chatcmpl-{os.urandom(8).hex()}"
        return {"id": answer_id, "object": kind, "created": int(time.time()), "model": self._name, "choices": choices}


def _delta(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


def _event(content: dict[str, object]) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


def application(server: ModelServer) -> web.Application:
    """The server's routes."""
    app = web.Application(client_max_size=LARGEST_BODY_BYTES)
    app.add_routes(
        [
            web.post("/v1/chat/completions", server.chat_completions),
            web.get("/v1/models", server.models),
            web.get("/health", server.health),
        ]
    )
    return app


async def serve(directory: Path, name: str, port: int) -> str | None:
    """Load the model and serve it until SIGTERM, or until it is broken: then say why."""
    server = ModelServer(directory, name)
    runner = web.AppRunner(
        application(server), access_log=None, handler_cancellation=True, shutdown_timeout=DRAIN_SECONDS
    )
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, port).start()
    sys.stdout.write(f"ready {runner.addresses[0][1]}\n")
    sys.stdout.flush()
    stopping = [asyncio.create_task(told_to_stop()), asyncio.create_task(server.broken.wait())]
    try:
        await asyncio.wait(stopping, return_when=asyncio.FIRST_COMPLETED)
        if server.batch.problem:
            await asyncio.wait(stopping[:1], timeout=LAST_WORDS_SECONDS)
    finally:
        await runner.cleanup()
    return server.batch.problem


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):  # unbuffered: a buffer's lock would abort the interpreter at its end
        pass
    os._exit(0)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="directory in Hugging Face's layout")
    parser.add_argument("--name", default="model", help="what it calls itself")
    parser.add_argument("--port", type=int, default=0, help="on loopback; 0 for any")
    asked = parser.parse_args()
    write_json_logs("model-server", sys.stderr)
    threading.Thread(target=_end_with_input, name="input", daemon=True).start()
    problem = asyncio.run(serve(asked.model, asked.name, asked.port))
    if problem:
        sys.exit(f"the model is broken: {problem}")


if __name__ == "__main__":
    main()
