"""`RLOrchestratorMixin`: the coordination of MassGen's agents, recorded from what its tracker is told."""

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from typing import Any

from rl_pipeline.collection.harmless import harmless
from rl_pipeline.collection.massgen.agent import Recorded, tokens_of, watched
from rl_pipeline.collection.massgen.chunks import kind_of
from rl_pipeline.collection.massgen.collector import TraceCollector
from rl_pipeline.collection.massgen.spans import TraceStatus
from rl_pipeline.collection.outbox.counts import Counting
from rl_pipeline.rewards.massgen import RewardComputer

_WATCHED = ("add_agent_answer", "add_agent_vote", "track_restart_signal", "set_final_agent", "set_final_answer")

_log = logging.getLogger("rl_pipeline.collection")

Told = Callable[[Any, str, Mapping[str, Any]], None]
"""Takes the tracker, the name of a method and its arguments."""


class CoordinationRecording:
    """One chat of an orchestrator: who said, answered, voted and began again. Nothing that is called here raises."""

    def __init__(self, collector: TraceCollector, trace_id: str) -> None:
        self.trace = collector.get_active_trace(trace_id)
        self._trace_id = trace_id
        self._collector = collector
        self._said: dict[str, list[str]] = {}
        self._votes: dict[str, str] = {}
        self._rounds = 0
        self._winner: str | None = None
        self._answer = ""
        self._answers: dict[str, str] = {}
        self._restarts: list[tuple[str, list[str]]] = []
        """What happened, and the answers that stood then."""
        self._error: str | None = None

    @property
    def counting(self) -> Counting:
        """Where faults are counted."""
        return self._collector.counting

    @harmless
    def see(self, chunk: Any) -> None:
        """A chunk has come; agents speak at once, and what each says until it acts is one span."""
        kind = kind_of(chunk)
        if kind == "content" and isinstance(chunk.content, str):
            self._said.setdefault(str(getattr(chunk, "source", None) or ""), []).append(chunk.content)
        elif kind == "error":
            self._error = str(getattr(chunk, "error", None) or "error")

    @harmless
    def told(self, tracker: Any, name: str, arguments: Mapping[str, Any]) -> None:
        """The orchestrator has told its tracker something."""
        agent = str(arguments.get("agent_id") or "")
        match name:
            case "add_agent_answer":
                self._answers[agent] = str(arguments["answer"])
                self._act(tracker, agent, "answer", {"agent_id": agent, "answer": arguments["answer"]})
            case "add_agent_vote":
                vote = arguments["vote_data"]
                target = str(vote.get("voted_for") or vote.get("agent_id") or "")
                self._votes[agent] = target
                self._act(tracker, agent, "vote", {"voter": agent, "voted_for": target, "reason": vote.get("reason")})
            case "track_restart_signal":
                agent, restarted = str(arguments["triggering_agent"]), list(arguments["agents_restarted"])
                for one in restarted:
                    self._votes.pop(one, None)  # they vote again, on what is new
                self._restarts.append(
                    (f"{agent} had {', '.join(map(str, restarted))} begin again", [*self._answers.values()])
                )
                self._act(tracker, agent, "restart", {"triggered_by": agent, "agents": restarted})
            case "set_final_agent":
                self._winner = agent
            case _:
                self._winner, self._answer = agent, str(arguments["final_answer"])

    @harmless
    def reward(self, rewards: RewardComputer, tokens: int) -> None:
        """What the coordination, the votes that counted and beginning again were worth."""
        answer = self._answer or self._answers.get(self._winner or "", "")
        quality = rewards.compute_answer_quality_reward(answer)
        worth = rewards.compute_coordination_reward(self._rounds, quality, tokens, self.has_consensus)
        agreed = "consensus" if self.has_consensus else "no consensus"
        reason = f"{self._rounds} rounds, {agreed}, quality {quality:.2f}, {tokens} tokens"
        self._collector.emit_reward_span(self._trace_id, worth, "coordination", reason)
        for voter, target in self._votes.items():
            if self._winner:
                right = rewards.compute_voting_reward(target, self._winner)
                self._collector.emit_reward_span(self._trace_id, right, "voting", f"{voter} voted for {target}")
        for what, standing in self._restarts if answer else ():
            before = max(map(rewards.compute_answer_quality_reward, standing), default=0.0)
            gained = rewards.compute_restart_decision_reward(True, before, quality)
            reason = f"{what}: quality {quality:.2f} after {before:.2f}"
            self._collector.emit_reward_span(self._trace_id, gained, "restart", reason)

    @property
    def has_consensus(self) -> bool:
        """Whether more than half of those whose votes stand voted for the winner."""
        for_winner = sum(target == self._winner for target in self._votes.values())
        return self._winner is not None and 2 * for_winner > len(self._votes)

    @harmless
    def close(self) -> None:
        """Nothing more comes: what is said and no act followed is the end of it, the winner's last."""
        for source in sorted(self._said, key=lambda name: name == self._winner):
            self._end_text(source)
        if self.trace is not None:
            self.trace.metadata |= {"winner": self._winner, "rounds": self._rounds}
            if self._winner is not None:
                self.trace.metadata["consensus"] = self.has_consensus

    def finish(self, error: BaseException | None) -> "Future[None] | None":
        """End the trace."""
        failed = self._error or (type(error).__name__ if isinstance(error, Exception) else None)
        if failed and self.trace is not None:
            self.trace.metadata["error"] = failed
        left_early = error is not None and not (isinstance(error, GeneratorExit) and self._answer)
        status: TraceStatus = "failed" if failed else "abandoned" if left_early else "completed"
        return self._collector.finish(self._trace_id, status)

    def _act(self, tracker: Any, agent: str, kind: str, data: dict[str, Any]) -> None:
        self._end_text(agent)
        get_round = getattr(tracker, "get_agent_round", None)
        this_round = 1 + int(get_round(agent)) if callable(get_round) else max(1, self._rounds)
        self._rounds = max(self._rounds, this_round)
        self._collector.emit_coordination_span(self._trace_id, kind, data, coordination_round=this_round)

    def _end_text(self, source: str) -> None:
        said = "".join(self._said.pop(source, []))
        if said.strip():
            self._collector.emit_content_span(self._trace_id, said, source or None)


class RLOrchestratorMixin(Recorded):
    """For `class RLOrchestrator(RLOrchestratorMixin, Orchestrator)`: its chats become traces of coordination.

    Agents that are recorded themselves and chat for it name its trace as their superior's.
    """

    _tracker: Any = None
    _recording: CoordinationRecording | None = None

    @property
    def coordination_tracker(self) -> Any:
        """The orchestrator's own tracker, which is also listened to; a restart replaces it."""
        return self._tracker

    @coordination_tracker.setter
    def coordination_tracker(self, tracker: Any) -> None:
        self._tracker = tracker
        if self.enable_rl:
            watch(tracker, self._told)

    def recorded_as(self) -> str:
        """The orchestrator's name in its traces."""
        return str(getattr(self, "orchestrator_id", None) or "orchestrator")

    def chat(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """The orchestrator's own chat, chunk by chunk as it is."""
        stream: AsyncIterator[Any] = super().chat(messages, *args, **kwargs)  # type: ignore[misc]
        try:
            return self._recorded(stream, messages)
        except Exception as error:  # noqa: BLE001 - an agent must not fail for being recorded
            _log.warning("recorder: a coordination is not recorded (%s)", type(error).__name__)
            return stream

    def _recorded(self, stream: AsyncIterator[Any], messages: Any) -> AsyncIterator[Any]:
        agents = getattr(self, "agents", None)
        names = list(agents) if isinstance(agents, Mapping) else []
        attempt = getattr(self, "current_attempt", 0)
        known = {"coordination": True, "num_agents": len(names), "agent_ids": names, "attempt": attempt}
        trace_id = self.start_recording(messages, known)
        if trace_id is None or self.trace_collector is None:
            return stream
        recording = self._recording = CoordinationRecording(self.trace_collector, trace_id)
        before = self._tokens()

        def finish(error: BaseException | None) -> "Future[None] | None":
            recording.close()
            if self.rl_config.enable_coordination_rewards and self.reward_computer and not isinstance(error, Exception):
                recording.reward(self.reward_computer, max(0, self._tokens() - before))
            if self._recording is recording:
                self._recording = None
            return recording.finish(error)

        return watched(stream, recording, self.trace_collector, finish)

    def _told(self, tracker: Any, name: str, arguments: Mapping[str, Any]) -> None:
        if self._recording is not None:
            self._recording.told(tracker, name, arguments)

    def _tokens(self) -> int:
        """What all agents have used so far."""
        agents = getattr(self, "agents", None)
        backends = [getattr(agent, "backend", None) for agent in agents.values()] if isinstance(agents, Mapping) else []
        return sum(sum(tokens_of(backend).values()) for backend in backends)


def watch(tracker: Any, told: Told) -> None:
    """Have `told` called after each call of the tracker's that matters here; the calls themselves do not change."""
    for name in _WATCHED:
        method = getattr(tracker, name, None)
        if callable(method):
            try:
                setattr(tracker, name, _listened(method, name, tracker, told))
            except Exception as error:  # noqa: BLE001 - an agent must not fail for being recorded
                _log.warning("recorder: %s is not recorded (%s)", name, type(error).__name__)


def _listened(method: Callable[..., Any], name: str, tracker: Any, told: Told) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def listened(*args: Any, **kwargs: Any) -> Any:
        returned = method(*args, **kwargs)
        told(tracker, name, signature.bind(*args, **kwargs).arguments)
        return returned

    return listened
