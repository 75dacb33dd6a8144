"""MassGen's agents and orchestrators, recorded: what they yield does not change, and what they did is a trace."""

import asyncio
import fcntl
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.collection.massgen import AlgorithmConfig, RewardSpan, RLConfig, StoreConfig, TraceCollector
from rl_pipeline_tests.collection.massgen.scenes import (
    ANSWER,
    ASKED,
    chunks,
    config,
    coordinate,
    kept,
    kinds,
    local,
    read,
)
from rl_pipeline_tests.collection.massgen.stand_ins import (
    Backend,
    ChunkType,
    Orchestrator,
    RLOrchestrator,
    RLSingleAgent,
    StreamChunk,
)
from rl_pipeline_tests.waiting import wait_until


class TestConfiguration:
    def test_the_names_and_defaults_are_those_of_the_documentation(self) -> None:
        told = RLConfig()
        assert (told.enable_rl, told.enable_human_feedback, told.collect_only) == (False, False, False)
        assert told.enable_tool_rewards
        assert told.enable_answer_quality_rewards
        assert told.enable_coordination_rewards
        assert (told.checkpoint_dir, told.log_dir) == ("./rl_checkpoints", "./rl_logs")
        assert (told.store_config.type, told.store_config.path) == ("local", "./rl_data")
        algorithm = AlgorithmConfig()
        assert (algorithm.algorithm, algorithm.learning_rate) == ("lightningrl", 1e-5)
        assert (algorithm.batch_size, algorithm.num_epochs) == (32, 10)
        assert (algorithm.gamma, algorithm.lambda_gae, algorithm.clip_epsilon) == (0.99, 0.95, 0.2)
        assert (algorithm.num_prompt_candidates, algorithm.prompt_diversity_threshold) == (5, 0.7)


class TestRLAgent:
    @pytest.mark.parametrize("kind", [str, ChunkType], ids=["text", "enumeration"])
    def test_a_chat_yields_what_it_yielded_and_is_a_trace(self, tmp_path: Path, kind: Any) -> None:
        said = chunks(kind)
        agent = RLSingleAgent(Backend(said), agent_id="agent_1", rl_config=config(tmp_path))
        assert asyncio.run(read(agent.chat(ASKED, tools=None, reset_chat=True))) == said
        [trace] = kept(tmp_path)
        assert (trace.trace_id, trace.agent_id, trace.task) == (agent.last_trace_id, "agent_1", ASKED[0]["content"])
        assert kinds(trace) == ["reasoning", "prompt", "tool", "reward", "tool", "reward", "content", "reward"]
        thought, prompt, search, found, measure, failed, answer, quality = trace.to_dict()["spans"]
        assert thought["reasoning"] == "I look it up."
        assert (prompt["input"], prompt["output"], prompt["model"]) == (ASKED[0]["content"], "Let me look.", "gpt-4o")
        assert (prompt["input_tokens"], prompt["output_tokens"]) == (30, 12)
        assert (search["tool_name"], search["arguments"]) == ("search", {"q": "moons"})
        assert (search["result"], search["success"], search["error"]) == ("two\nmoons", True, None)
        assert (measure["tool_name"], measure["success"], measure["error"]) == ("measure", False, "❌ no ruler")
        assert [(one["reward_type"], one["reward"]) for one in (found, failed)] == [("tool", 1.0), ("tool", -1.0)]
        assert (answer["content"], answer["source"]) == (ANSWER, "agent_1")
        assert quality["reward_type"] == "answer_quality"
        assert 0 < quality["reward"] <= 1
        assert trace.total_reward == pytest.approx(quality["reward"])
        assert trace.status == "completed"

    def test_an_agent_that_is_not_to_be_recorded_is_not(self, tmp_path: Path) -> None:
        said = chunks(str)
        agent = RLSingleAgent(Backend(said), enable_rl=False, rl_config=config(tmp_path))
        assert asyncio.run(read(agent.chat(ASKED))) == said
        assert list(tmp_path.iterdir()) == []

    def test_rewards_that_are_switched_off_are_not_there(self, tmp_path: Path) -> None:
        told = config(tmp_path, enable_tool_rewards=False, enable_answer_quality_rewards=False)
        asyncio.run(read(RLSingleAgent(Backend(chunks(str)), rl_config=told).chat(ASKED)))
        [trace] = kept(tmp_path)
        assert "reward" not in kinds(trace)
        assert trace.total_reward is None

    @pytest.mark.parametrize(("taken", "status"), [(5, "abandoned"), (13, "completed")])
    def test_a_consumer_that_closes_early_ends_the_trace(self, tmp_path: Path, taken: int, status: str) -> None:
        agent = RLSingleAgent(Backend(chunks(str)), rl_config=config(tmp_path))
        assert len(asyncio.run(read(agent.chat(ASKED), taken))) == taken
        assert agent.was_closed
        [trace] = kept(tmp_path)
        assert trace.status == status

    def test_a_consumer_that_closes_once_the_agent_has_voted_has_what_it_wanted(self, tmp_path: Path) -> None:
        vote = {"id": "v1", "type": "function", "function": {"name": "vote", "arguments": '{"agent_id": "agent1"}'}}
        flat = {"call_id": "v2", "name": "new_answer", "arguments": json.dumps({"content": ANSWER})}
        said = [StreamChunk("tool_calls", tool_calls=[vote, flat]), StreamChunk("content", content="never read")]
        agent = RLSingleAgent(Backend([*said]), rl_config=config(tmp_path))
        asyncio.run(read(agent.chat(ASKED), 1))
        [trace] = kept(tmp_path)
        assert trace.status == "completed"
        prompt, voted, answered, quality = trace.to_dict()["spans"]
        assert (prompt["input"], prompt["output"]) == (ASKED[0]["content"], "")
        assert (voted["tool_name"], voted["arguments"], voted["result"]) == ("vote", {"agent_id": "agent1"}, None)
        assert answered["arguments"] == {"content": ANSWER}
        assert quality["reward_type"] == "answer_quality"

    def test_an_exception_goes_on_its_way_and_the_trace_has_failed(self, tmp_path: Path) -> None:
        agent = RLSingleAgent(Backend([*chunks(str)[:5], ValueError("secret")]), rl_config=config(tmp_path))
        with pytest.raises(ValueError, match="secret"):
            asyncio.run(read(agent.chat(ASKED)))
        [trace] = kept(tmp_path)
        assert (trace.status, trace.metadata["error"]) == ("failed", "ValueError")

    def test_an_error_that_is_told_in_a_chunk_is_a_failure(self, tmp_path: Path) -> None:
        agent = RLSingleAgent(Backend([StreamChunk("error", error="no credit")]), rl_config=config(tmp_path))
        asyncio.run(read(agent.chat(ASKED)))
        [trace] = kept(tmp_path)
        assert (trace.status, trace.metadata["error"]) == ("failed", "no credit")

    def test_the_backend_tells_the_tokens_where_no_chunk_does(self, tmp_path: Path) -> None:
        backend = Backend([StreamChunk("content", content="Two."), StreamChunk("done")], tokens=(7, 2))
        agent = RLSingleAgent(backend, rl_config=config(tmp_path))
        asyncio.run(read(agent.chat(ASKED)))
        asyncio.run(read(agent.chat(ASKED)))
        spans = [trace.to_dict()["spans"][0] for trace in kept(tmp_path)]
        assert [(span["input_tokens"], span["output_tokens"]) for span in spans] == [(7, 2), (7, 2)]

    def test_chunks_that_nobody_understands_break_nothing(self, tmp_path: Path) -> None:
        strange: list[Any] = [
            object(),
            StreamChunk("tool_calls", tool_calls=[7, {}, {"function": 3}]),
            StreamChunk("content", content=None),
            StreamChunk("mcp_status", status="mcp_tool_response", source="mcp_never_called"),
            StreamChunk("done", usage={"prompt_tokens": "many"}),
        ]
        agent = RLSingleAgent(Backend(strange), rl_config=config(tmp_path))
        assert asyncio.run(read(agent.chat(ASKED))) == strange

    def test_a_store_that_cannot_be_written_breaks_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for store in (StoreConfig(path=str(tmp_path / "file" / "below")), StoreConfig("remote", path="/proc/none")):
            agent = RLSingleAgent(Backend(chunks(str)), enable_rl=True, rl_config=RLConfig(store_config=store))
            assert len(asyncio.run(read(agent.chat(ASKED)))) == 13

    def test_human_feedback_is_kept_only_where_it_is_wanted(self, tmp_path: Path) -> None:
        for wanted in (False, True):
            directory = tmp_path / str(wanted)
            agent = RLSingleAgent(Backend(chunks(str)), rl_config=config(directory, enable_human_feedback=wanted))
            agent.record_human_feedback("thumbs_up")  # nothing has been said yet
            asyncio.run(read(agent.chat(ASKED)))
            agent.record_human_feedback("stars", rating=4, user_id="ada")
            agent.record_human_feedback("stars")  # no stars: it is refused, and the agent goes on
            file = directory / "metadata" / "feedback.jsonl"
            assert agent.trace_collector is not None
            asyncio.run(agent.trace_collector.store.save_trace(kept(directory)[0]))
            assert file.exists() == wanted
        [line] = map(json.loads, file.read_text().splitlines())
        assert (line["trajectory_id"], line["kind"], line["rating"]) == (agent.last_trace_id, "stars", 4)


class TestRLOrchestrator:
    def test_answers_votes_and_restarts_are_spans_with_their_rewards(self, tmp_path: Path) -> None:
        orchestrator = RLOrchestrator({"a": None, "b": None}, script=coordinate, rl_config=config(tmp_path))
        taken = asyncio.run(read(orchestrator.chat(ASKED)))
        assert [chunk.content for chunk in taken] == ["I think ", "Hm.", "two.", "Two moons.", None]
        assert orchestrator.coordination_tracker.calls[:3] == ["answer", "vote", "restart"]
        [trace] = kept(tmp_path)
        spans = trace.to_dict()["spans"]
        acts = [(one["action_type"], one["coordination_round"]) for one in spans if one["span_type"] == "coordination"]
        assert acts == [("answer", 1), ("vote", 1), ("restart", 1), ("vote", 2), ("vote", 1)]
        said = [(one["source"], one["content"]) for one in spans if one["span_type"] == "content"]
        assert said == [("a", "I think two."), ("b", "Hm."), ("a", "Two moons.")]
        rewards = [(one["reward_type"], one["reward"]) for one in spans if one["span_type"] == "reward"]
        assert [kind for kind, _ in rewards] == ["coordination", "voting", "voting", "restart"]
        assert [worth for kind, worth in rewards if kind == "voting"] == [1.0, 1.0]
        assert trace.agent_id == "orchestrator"
        assert trace.metadata["consensus"] is True
        assert (trace.metadata["winner"], trace.metadata["rounds"], trace.status) == ("a", 2, "completed")

    @pytest.mark.parametrize(("first", "final", "worth"), [("Two.", ANSWER, 1.0), (ANSWER, ANSWER, -0.5)])
    def test_a_restart_is_worth_what_the_answer_gained(
        self, tmp_path: Path, first: str, final: str, worth: float
    ) -> None:
        async def begin_again(orchestrator: Orchestrator) -> AsyncIterator[StreamChunk]:
            tracker = orchestrator.coordination_tracker
            tracker.add_agent_answer("a", first)
            tracker.track_restart_signal("a", ["b"])
            tracker.add_agent_answer("b", final)
            tracker.set_final_agent("b", "1 vote", {"b": final})
            yield StreamChunk("done")

        orchestrator = RLOrchestrator({"a": None, "b": None}, script=begin_again, rl_config=config(tmp_path))
        asyncio.run(read(orchestrator.chat(ASKED)))
        [trace] = kept(tmp_path)
        [restart] = [span for span in trace.spans if isinstance(span, RewardSpan) and span.reward_type == "restart"]
        assert (restart.reward, (restart.reason or "").startswith("a had b begin again")) == (worth, True)

    def test_a_restart_of_which_nothing_came_is_worth_nothing(self, tmp_path: Path) -> None:
        async def give_up(orchestrator: Orchestrator) -> AsyncIterator[StreamChunk]:
            orchestrator.coordination_tracker.track_restart_signal("a", ["b"])
            yield StreamChunk("done")

        orchestrator = RLOrchestrator({"a": None}, script=give_up, rl_config=config(tmp_path))
        asyncio.run(read(orchestrator.chat(ASKED)))
        [trace] = kept(tmp_path)
        assert kinds(trace) == ["coordination", "reward"]

    def test_what_the_tracker_refuses_is_still_refused(self, tmp_path: Path) -> None:
        orchestrator = RLOrchestrator({}, rl_config=config(tmp_path))
        with pytest.raises(KeyError):
            orchestrator.coordination_tracker.add_agent_vote("a", {})

    def test_a_tracker_that_replaces_another_is_listened_to(self, tmp_path: Path) -> None:
        async def restarted(orchestrator: Orchestrator) -> AsyncIterator[StreamChunk]:
            orchestrator.coordination_tracker = type(orchestrator.coordination_tracker)()
            orchestrator.coordination_tracker.add_agent_answer("a", "Two.")
            yield StreamChunk("done")

        asyncio.run(read(RLOrchestrator({"a": None}, script=restarted, rl_config=config(tmp_path)).chat(ASKED)))
        [trace] = kept(tmp_path)
        assert kinds(trace) == ["coordination", "reward"]

    def test_agents_that_chat_for_an_orchestrator_name_its_trace(self, tmp_path: Path) -> None:
        agent = RLSingleAgent(Backend(chunks(str)), agent_id="a", rl_config=config(tmp_path))

        async def delegate(orchestrator: Orchestrator) -> AsyncIterator[StreamChunk]:
            await asyncio.create_task(read(agent.chat(ASKED)))
            yield StreamChunk("done")

        async def both() -> None:
            orchestrator = RLOrchestrator({"a": agent}, script=delegate, rl_config=config(tmp_path))
            await read(orchestrator.chat(ASKED))
            await read(agent.chat(ASKED))  # for itself

        asyncio.run(both())
        alone, *others = kept(tmp_path)
        traces = {trace.agent_id: trace for trace in others}
        assert traces["a"].metadata["parent_trace_id"] == traces["orchestrator"].trace_id
        assert traces["a"].metadata["session_id"] == "chat_session_2"
        assert "parent_trace_id" not in alone.metadata

    def test_a_coordination_that_is_broken_off_has_ended(self, tmp_path: Path) -> None:
        orchestrator = RLOrchestrator({"a": None}, script=coordinate, rl_config=config(tmp_path))
        asyncio.run(read(orchestrator.chat(ASKED), 2))
        [trace] = kept(tmp_path)
        assert trace.status == "abandoned"


class TestTraceCollector:
    def test_six_kinds_of_spans_are_kept_as_the_documentation_has_them(self, tmp_path: Path) -> None:
        ticks = iter(range(1_000_000_000, 1_000_000_100))
        collector = TraceCollector("agent_1", local(tmp_path), clock=lambda: float(next(ticks)))
        trace_id = collector.start_trace("Analyze quantum computing", {"a": 1})
        collector.emit_reasoning_span(trace_id, "Think.")
        collector.emit_prompt_span(trace_id, "...", "...", "gpt-4o", input_tokens=3)
        collector.emit_tool_span(trace_id, "web_search", {"q": "x"}, {"hits": 2}, execution_time=0.5)
        collector.emit_reward_span(trace_id, 1.0, "tool", "good")
        collector.emit_coordination_span(trace_id, "vote", {"voted_for": "agent_2"}, coordination_round=2)
        collector.emit_content_span(trace_id, "Done.")
        collector.emit_content_span("another", "is ignored")
        assert asyncio.run(collector.end_trace(trace_id))
        assert not asyncio.run(collector.end_trace(trace_id))
        file = tmp_path / "traces" / "20010909" / "agent_1" / f"trace_{trace_id}.json"
        told = json.loads(file.read_text())
        assert {"trace_id", "agent_id", "task", "spans", "total_reward", "status"} <= told.keys()
        assert [span["span_type"] for span in told["spans"]] == [
            *("reasoning", "prompt", "tool", "reward", "coordination", "content")
        ]
        assert (told["total_reward"], told["status"], told["duration"]) == (1.0, "completed", 7.0)
        assert file.stat().st_mode & 0o077 == 0
        [trace] = kept(tmp_path)
        assert trace.to_dict() == told

    def test_a_failed_trace_says_why_and_a_cancelled_one_is_not_kept(self, tmp_path: Path) -> None:
        collector = TraceCollector("agent_1", local(tmp_path))
        failed, cancelled = collector.start_trace("one"), collector.start_trace("two")
        collector.cancel_trace(cancelled)
        assert asyncio.run(collector.fail_trace(failed, "out of luck"))
        [trace] = kept(tmp_path)
        assert (trace.trace_id, trace.status, trace.metadata["error"]) == (failed, "failed", "out of luck")

    def test_the_end_waits_for_the_disk_and_not_for_ever(self, tmp_path: Path) -> None:
        (tmp_path / "metadata").mkdir()
        collector = TraceCollector("agent_1", StoreConfig(path=str(tmp_path), disk_seconds=0.01))
        with (tmp_path / "metadata" / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            trace_id = collector.start_trace("one")
            assert not asyncio.run(collector.end_trace(trace_id))
        wait_until(lambda: kept(tmp_path))
        collector.store.config.disk_seconds = 120
        assert asyncio.run(collector.end_trace(collector.start_trace("two")))
        assert len(kept(tmp_path)) == 2
