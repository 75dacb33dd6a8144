"""Trajectories as agent-lightning's spans."""

from collections.abc import Iterator
from hashlib import sha256

from rl_pipeline.collection.formats.chat import messages_of_exchanges
from rl_pipeline.collection.formats.exchanges import Exchange, exchanges_of
from rl_pipeline.collection.formats.format import UNKNOWN_MODEL
from rl_pipeline.collection.formats.lightning_attributes import ModelCall
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_count,
    as_list,
    as_moment,
    as_number,
    as_object,
    filled,
)


class WrittenSpans:
    """Spans of a trajectory, with the prompts written out."""

    def __init__(self, trajectory: JsonObject, *, is_chat: bool, is_own: bool) -> None:
        self._trajectory = trajectory
        self._exchanges, _ = exchanges_of(trajectory["turns"])
        self._is_chat = is_chat
        """Whether the turns have the fields of chat messages."""
        self._is_own = is_own
        """Whether the turns have spans of this format."""
        self._count = 0

    def spans(self) -> Iterator[JsonObject]:
        """One for each call to a model, then those that stood behind it."""
        for exchange, prompt, answer in self._calls():
            yield self._span(exchange, prompt, answer)
            yield from self._behind(exchange)

    def _calls(self) -> Iterator[tuple[Exchange, list[JsonObject], JsonObject]]:
        """Each call with its whole prompt and its answer."""
        known: list[JsonObject] = []
        waiting: list[JsonObject] = []
        for exchange in self._exchanges:
            messages = messages_of_exchanges([exchange], is_chat=self._is_chat, as_functions=not self._is_own)
            if not self._is_own:  # an attribute without a value is none
                messages = [filled(message) for message in messages]
            place = len(exchange.shown)
            waiting += messages[:place]
            if exchange.turn.get("is_copied_context") and "call_span" not in exchange.turn:
                waiting += messages[place:]
                continue
            kept = as_count(exchange.turn.get("kept"))
            repeated = known[: len(known) if kept is None else kept]
            # How a tracer of the same format wrote what it repeats; another repeats it as it was.
            for place_of, message in as_object(exchange.turn.get("prompted") if self._is_own else None).items():
                repeated[int(place_of)] = message
            prompt = [*repeated, *waiting]
            yield exchange, prompt, messages[place]
            known, waiting = [*prompt, messages[place]], messages[place + 1 :]

    def _span(self, exchange: Exchange, prompt: list[JsonObject], answer: JsonObject) -> JsonObject:
        own = as_object(exchange.turn.get("call_span")) if self._is_own else {}
        rest = own or self._made("openai.chat.completion", exchange)
        sampling, metadata = as_object(exchange.turn.get("sampling")), self._trajectory["metadata"]
        call = ModelCall(prompt, answer, sampling, rest)
        if not own:
            call.model = sampling.get("model_version") or metadata.get("model") or UNKNOWN_MODEL
        return call.written()

    def _behind(self, exchange: Exchange) -> Iterator[JsonObject]:
        if self._is_own and "call_span" in exchange.turn:
            yield from as_list(exchange.turn.get("other_spans"))
            return
        reward = as_number(exchange.turn.get("reward"))
        if exchange is self._exchanges[-1] and reward is None:
            reward = as_number(self._trajectory["task_context"].get("reward"))
        if reward is not None:
            span = self._made("agentlightning.annotation", exchange)
            yield span | {
                "attributes": {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward}
            }

    def _made(self, name: str, exchange: Exchange) -> JsonObject:
        """A span for a turn that was recorded elsewhere."""
        self._count += 1
        identity = str(self._trajectory["trajectory_id"])
        digest = sha256(f"{identity} {self._count}".encode()).hexdigest()
        moment = as_moment(exchange.turn.get("timestamp"))
        seconds = moment.timestamp() if moment else None
        return {
            "rollout_id": identity,
            "attempt_id": f"{identity}-1",
            "sequence_id": self._count,
            "trace_id": identity.replace("-", ""),
            "span_id": digest[:16],
            "parent_id": None,
            "name": name,
            "status": {"status_code": "OK", "description": None},
            "attributes": {},
            "events": [],
            "links": [],
            "start_time": seconds,
            "end_time": seconds,
            "context": None,
            "parent": None,
            "resource": {"attributes": {}, "schema_url": ""},
        }
