"""`RLAgentMixin`: an agent of MassGen whose chats are recorded, and which does what it did before."""

import logging
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from rl_pipeline.collection.massgen.chunks import ChatRecording, task_of
from rl_pipeline.collection.massgen.collector import TraceCollector, within
from rl_pipeline.collection.massgen.config import RLConfig
from rl_pipeline.collection.massgen.spans import Trace
from rl_pipeline.contracts import FeedbackKind
from rl_pipeline.rewards.massgen import RewardComputer

_log = logging.getLogger("rl_pipeline.collection")


class StreamRecording(Protocol):
    """What is made of a chat's chunks."""

    trace: Trace | None

    def see(self, chunk: Any) -> None:
        """A chunk has come. Does not raise."""


class Recorded:
    """What agents and orchestrators have in common."""

    trace_collector: TraceCollector | None = None
    reward_computer: RewardComputer | None = None
    last_trace_id: str | None = None
    """The trace of the latest chat: feedback is about it, unless it names another."""

    def __init__(
        self, *args: Any, enable_rl: bool | None = None, rl_config: RLConfig | None = None, **kwargs: Any
    ) -> None:
        """`enable_rl` decides; without it, that of the configuration does."""
        self.rl_config = rl_config or RLConfig()
        self.enable_rl = self.rl_config.enable_rl if enable_rl is None else enable_rl
        super().__init__(*args, **kwargs)
        if self.enable_rl:
            try:
                self.trace_collector = TraceCollector(self.recorded_as(), self.rl_config.store_config)
                self.reward_computer = RewardComputer()
            except Exception as error:  # noqa: BLE001 - an agent must not fail for being recorded
                _log.warning("recorder: nothing is recorded, the store cannot be opened (%s)", type(error).__name__)

    def recorded_as(self) -> str:
        """The agent's name in its traces."""
        return str(getattr(self, "agent_id", None) or "agent")

    def record_human_feedback(
        self,
        kind: FeedbackKind,
        *,
        rating: int | None = None,
        text: str | None = None,
        user_id: str | None = None,
        trace_id: str | None = None,
    ) -> None:
        """What a person thought of the latest chat, or of the named one; ignored unless `enable_human_feedback`."""
        about = trace_id or self.last_trace_id
        if self.trace_collector and self.rl_config.enable_human_feedback and about:
            self.trace_collector.give_feedback(about, kind, rating=rating, text=text, user_id=user_id)

    def start_recording(self, messages: Any, metadata: Mapping[str, Any]) -> str | None:
        """Begin the trace of a chat; None where nothing is recorded."""
        if self.trace_collector is None:
            return None
        session = getattr(self, "session_id", None)
        known = {"session_id": session, **metadata} if session else dict(metadata)
        self.last_trace_id = self.trace_collector.start_trace(task_of(messages), known)
        return self.last_trace_id


async def watched(
    stream: AsyncIterator[Any],
    recording: StreamRecording,
    collector: TraceCollector,
    finish: "Finish",
) -> AsyncIterator[Any]:
    """The chunks of a chat, as they are; whatever ends it, a consumer that closes early included, ends its trace."""
    ended_by: BaseException | None = None
    try:
        while True:
            with within(recording.trace):
                try:
                    chunk = await anext(stream)
                except StopAsyncIteration:
                    break
            recording.see(chunk)
            yield chunk
    except BaseException as error:
        ended_by = error
        with suppress(AttributeError):  # not every iterator can be closed
            await stream.aclose()  # type: ignore[attr-defined]
        raise
    finally:
        try:
            written = finish(ended_by)
        except Exception as error:  # noqa: BLE001 - an agent must not fail for being recorded
            written = None
            _log.warning("recorder: a trace could not be ended (%s)", type(error).__name__)
        await collector.settled(written)


class Finish(Protocol):
    """Ends a trace."""

    def __call__(self, error: BaseException | None, /) -> "Future[None] | None":
        """By what the chat was ended, if not by itself."""


class RLAgentMixin(Recorded):
    """For `class RLSingleAgent(RLAgentMixin, SingleAgent)`: its chats become traces, with the rewards that are due."""

    def chat(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """The agent's own chat, chunk by chunk as it is."""
        stream: AsyncIterator[Any] = super().chat(messages, *args, **kwargs)  # type: ignore[misc]
        try:
            return self._recorded(stream, messages)
        except Exception as error:  # noqa: BLE001 - an agent must not fail for being recorded
            _log.warning("recorder: a chat is not recorded (%s)", type(error).__name__)
            return stream

    def _recorded(self, stream: AsyncIterator[Any], messages: Any) -> AsyncIterator[Any]:
        backend = getattr(self, "backend", None)
        trace_id = self.start_recording(messages, {"model": model_of(backend)})
        if trace_id is None or self.trace_collector is None or self.reward_computer is None:
            return stream
        before = tokens_of(backend)
        recording = ChatRecording(self.trace_collector, self.reward_computer, self.rl_config, trace_id, messages)

        def finish(error: BaseException | None) -> "Future[None] | None":
            now = tokens_of(backend)
            return recording.finish(error, {name: now[name] - before.get(name, 0) for name in now})

        return watched(stream, recording, self.trace_collector, finish)


def model_of(backend: Any) -> str | None:
    """The model that a backend asks."""
    configuration = getattr(backend, "config", None)
    named = configuration.get("model") if isinstance(configuration, Mapping) else getattr(backend, "model", None)
    return named if isinstance(named, str) and named else None


def tokens_of(backend: Any) -> dict[str, int]:
    """What a backend has used so far."""
    usage = getattr(backend, "token_usage", None)
    counts = {"input": getattr(usage, "input_tokens", None), "output": getattr(usage, "output_tokens", None)}
    return {name: count for name, count in counts.items() if isinstance(count, int)}
