"""A server that speaks AgentGym's protocol in the dialects of its environments, with a guessing game behind them all.

The dialects are written here once more, as AgentGym's own servers check them: what lacks a field is refused with 422.
The game: item n is won by `say n`; what is said before that is worth half of it once, and `crash` breaks the server.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

NUMBERED = {"alfworld", "babyai", "sciworld", "textcraft"}
"""Their requests carry `id`, their errors come with status 200, and a reset shows the first observation."""
TOOLS = {"weather", "movie", "academia", "todo", "sheet"}
ITEMS = {
    "alfworld": "game",
    "babyai": "data_idx",
    "sciworld": "data_idx",
    "textcraft": "data_idx",
    "webshop": "session_id",
    "sqlgym": "item_id",
    "webarena": "idx",
    **dict.fromkeys(TOOLS, "id"),
}
ALSO_FOR_RESET = {"alfworld": {"world_type"}, "webarena": {"seed"}}


class Refusal(Exception):
    """Answered with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class AgentGym:
    """The state of a server of one environment."""

    def __init__(self, environment: str) -> None:
        self.environment = environment
        self.named = "id" if environment in NUMBERED else "env_idx"
        self.games: dict[int, dict[str, Any]] = {}
        self.actions: list[str] = []
        self.stuck = Event()
        """Set it, and no step is answered any more."""
        self.released = Event()

    def create(self, body: dict[str, Any]) -> Any:
        if self.environment in TOOLS:
            self._need(body, {"id"})
        number = len(self.games) + 10
        self.games[number] = {}
        if self.environment in NUMBERED:
            return {"id": number}
        return {"env_idx": number} if self.environment == "webarena" else number

    def reset(self, body: dict[str, Any]) -> Any:
        item = ITEMS[self.environment]
        self._need(body, {self.named, item} | ALSO_FOR_RESET.get(self.environment, set()))
        game = self._game(body[self.named])
        game |= {"item": body[item], "score": 0.0, "done": False, "seen": f"Guess item {body[item]}."}
        match self.environment:
            case "alfworld":
                return {"id": 0, "observation": game["seen"], "available_actions": ["say 1", "say 2"]}
            case "sciworld":
                return {"task_description": "Find the number.", "observation": game["seen"], "reward": 0, "score": 0}
            case "webshop" | "sqlgym":
                return [game["seen"], None]
            case _:
                return {"observation": game["seen"], "reward": 0, "score": 0, "done": False}

    def step(self, body: dict[str, Any]) -> Any:
        self._need(body, {self.named, "action"})
        if self.stuck.is_set():
            self.released.wait(60)
        game = self._game(body[self.named])
        if game["done"]:
            raise Refusal(200, "The task has finished.")
        self.actions.append(body["action"])
        if body["action"] == "crash":
            raise Refusal(500, "Internal Server Error")
        game["done"] = body["action"] == f"say {game['item']}"
        game["score"] = 1.0 if game["done"] else 0.5
        game["seen"] = "Yes." if game["done"] else "No."
        done, score = game["done"], game["score"]
        match self.environment:
            case "webshop" | "sqlgym":
                return {"state": game["seen"], "reward": score, "done": done, "info": None}
            case "webarena":
                return {"observation": game["seen"], "reward": score, "terminated": done, "truncated": False}
            case "sciworld":
                return {"observation": game["seen"], "reward": 7, "score": int(100 * score), "done": done}
            case "babyai":
                return {"observation": game["seen"], "reward": 0, "score": score, "done": done}
            case _:
                return {"observation": game["seen"], "reward": score, "done": done}

    def observation(self, query: dict[str, Any]) -> Any:
        self._need(query, {self.named})
        return self._game(int(query[self.named]))["seen"]

    def _need(self, body: dict[str, Any], names: set[str]) -> None:
        if names - set(body):
            raise Refusal(422, f"Field required: {sorted(names - set(body))}")

    def _game(self, number: int) -> dict[str, Any]:
        if number not in self.games:
            raise Refusal(200 if self.environment in NUMBERED else 500, f"The id {number} is not valid.")
        return self.games[number]


@contextmanager
def agentgym_server(environment: str) -> Iterator[tuple[AgentGym, str]]:
    """A server on a free port of the loopback, and its address."""
    gym = AgentGym(environment)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(lambda: getattr(gym, self.path.strip("/"))(body))

        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            self._answer(lambda: gym.observation(query))

        def _answer(self, call: Any) -> None:
            try:
                status, answer = 200, call()
            except Refusal as refusal:
                status, answer = refusal.status, {"error" if refusal.status == 200 else "detail": str(refusal)}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

        def handle(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked did not wait
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield gym, f"http://127.0.0.1:{server.server_port}"
    finally:
        gym.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
