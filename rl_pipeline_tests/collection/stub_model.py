"""A model behind OpenAI's API, as small as a test needs it: it answers what it is told to answer."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StubModel:
    """What it will answer, and what it was asked."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        """Bodies of answers, in turn; `status` for one that is no 200, `events` for a stream, `hold` to stay in it."""
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()
        self.url = ""
        self.close: Callable[[], None] = lambda: None
        """Be gone: nobody listens any more."""


def said(content: str | None, **more: Any) -> dict[str, Any]:
    """An answer of the model."""
    message = {"role": "assistant", "content": content, "refusal": None, **more.pop("message", {})}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **more.pop("choice", {})}
    return {"id": f"chatcmpl-{content}", "object": "chat.completion", "model": "v7", "choices": [choice], **more}


def called(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    """A call of a tool, in an answer or in the messages."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def event(**choice: Any) -> dict[str, Any]:
    """An event of a stream."""
    return {"id": "chatcmpl-stream", "model": "v7", "choices": [{"index": 0, **choice}]}


@contextmanager
def running_stub() -> Iterator[StubModel]:
    """The model, while it runs."""
    stub = StubModel()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, {"object": "list", "data": [{"id": "v7"}], "path": self.path})

        def do_POST(self) -> None:
            stub.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            stub.headers.append({name.lower(): value for name, value in self.headers.items()})
            answer = stub.answers.pop(0)
            if "events" in answer:
                self._stream(answer)
            else:
                self._send(answer.pop("status", 200), answer)

        def _send(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, answer: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            parts = [f"data: {json.dumps(content)}\n\n".encode() for content in answer["events"]]
            for part in [*parts, *([] if "hold" in answer else [b"data: [DONE]\n\n"])]:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.flush()
            if "hold" in answer:
                stub.released.wait(120)
                self.close_connection = True
            else:
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None: ...  # callers hang up here on purpose

    with Server(("127.0.0.1", 0), Handler) as server:
        stub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def close() -> None:
            stub.released.set()
            server.shutdown()
            server.server_close()
            thread.join()

        stub.close = close
        try:
            yield stub
        finally:
            close()
