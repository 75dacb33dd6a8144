"""Where MassGen's traces go: files that can be asked, or the stream."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rl_pipeline.collection.massgen import LightningStore, RLConfig, StoreConfig, Trace, TracesAreElsewhere
from rl_pipeline.collection.massgen.store import _shared_outbox
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.massgen.scenes import ASKED, chunks, coordinate, read
from rl_pipeline_tests.collection.massgen.stand_ins import Backend, RLOrchestrator, RLSingleAgent, StreamChunk
from rl_pipeline_tests.collection.recordings import SECRET, OpenOutbox, sent_by


class TestLightningStore:
    def test_traces_are_found_by_id_agent_day_status_and_reward(self, tmp_path: Path) -> None:
        store = LightningStore(StoreConfig(path=str(tmp_path)))
        day = datetime(2026, 1, 31, 12, tzinfo=UTC)
        for number, agent in enumerate(("a", "b", "../a", "a")):
            trace = Trace(f"t{number}", agent, "task " * 50, start_time=day.timestamp() + 43200 * number)
            trace.total_reward = float(number)
            trace.end("completed" if number else "failed", trace.start_time + 1)
            assert asyncio.run(store.save_trace(trace))

        def found(**asked: Any) -> list[str]:
            return [trace.trace_id for trace in store.query(**asked)]

        assert found() == ["t3", "t2", "t1", "t0"]
        assert found(agent_id="a") == ["t3", "t0"]
        assert found(day=day.date()) == ["t0"]
        assert found(status="completed", min_reward=2.0, limit=1) == ["t3"]
        loaded = store.load_trace("t1")
        assert loaded is not None
        assert loaded.agent_id == "b"
        assert store.load_trace("t9") is None
        assert store.statistics() == {
            "total_traces": 4,
            "total_agents": 3,
            "total_reward": 6.0,
            "agents": {"a": 2, "b": 1, "../a": 1},
        }
        assert all(tmp_path in file.parents for file in tmp_path.rglob("trace_t*.json"))
        index = json.loads((tmp_path / "metadata" / "trace_index.json").read_text())
        assert index["agents"]["a"] == ["t0", "t3"]
        assert len(index["traces"]["t0"]["task"]) == 100

    def test_many_who_write_at_once_lose_nothing(self, tmp_path: Path) -> None:
        stores = [LightningStore(StoreConfig(path=str(tmp_path))) for _ in range(4)]
        written = [
            store.finish(Trace(f"t{number}-{place}", "a", "task", start_time=1e9))
            for number in range(10)
            for place, store in enumerate(stores)
        ]
        for future in written:
            future.result(60)
        assert stores[0].statistics()["total_traces"] == 40


class TestRemoteStore:
    def test_a_remote_store_is_the_stream_and_its_feedback_ours(
        self, open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
    ) -> None:
        outbox = open_outbox(nats_server.url)
        store = StoreConfig("remote", outbox=outbox)
        said = [*chunks(str)[:-2], StreamChunk("content", content=f"The key is {SECRET}."), StreamChunk("done")]
        told = RLConfig(store_config=store, enable_human_feedback=True)
        agent = RLSingleAgent(Backend([*said], tokens=(7, 2)), agent_id="agent_1", enable_rl=True, rl_config=told)
        asyncio.run(read(agent.chat(ASKED)))
        agent.record_human_feedback("thumbs_up")
        [sent] = sent_by(outbox, stream)
        assert (sent["trajectory_id"], sent["agent_id"]) == (agent.last_trace_id, "agent_1")
        assert sent["session_id"] == "chat_session_1"
        assert "task_status" not in sent["task_context"], "that the stream ended says nothing about the task"
        assert sent["metadata"]["framework"] == "massgen"
        assert (sent["metadata"]["model"], sent["metadata"]["total_tokens"]) == ("gpt-4o", 9)
        first, search, measure, answer = sent["turns"]
        assert first["observation"]["content"] == ASKED[0]["content"]
        assert first["thought_process"] == ["I look it up."]
        assert (search["action"]["tool_name"], search["result"]["output"]) == ("search", "two\nmoons")
        assert search["rewards"][0]["reward"] == 1.0
        assert measure["result"]["success"] is False
        assert SECRET not in json.dumps(sent)
        assert answer["action"]["raw_response"].startswith("The key is ")
        last = stream.state("RL_FEEDBACK").last_sequence
        [message] = [one for batch in stream.read("RL_FEEDBACK", last, last, 1) for one in batch]
        feedback = json.loads(message.data)
        assert (feedback["trajectory_id"], feedback["kind"]) == (agent.last_trace_id, "thumbs_up")
        assert (outbox.counts.sent, outbox.counts.posted) == (1, 1)
        with pytest.raises(TracesAreElsewhere):
            LightningStore(store).query()

    def test_a_trace_of_600_kb_goes_to_the_store_that_the_configuration_names(
        self, outbox_directory: Path, stream: JetStream, nats_server: NatsServer
    ) -> None:
        directory, server = outbox_directory.parent, urlsplit(nats_server.url)
        store = StoreConfig(
            *("remote", str(directory), str(server.hostname), int(server.port or 0)),
            disk_seconds=120,
            trajectory_storage_path=str(directory / "storage"),
        )
        said = [StreamChunk("content", content="two " * 150_000), StreamChunk("done")]
        agent = RLSingleAgent(Backend([*said]), enable_rl=True, rl_config=RLConfig(store_config=store))
        asyncio.run(read(agent.chat(ASKED)))
        outbox = _shared_outbox(store)
        [sent] = sent_by(outbox, stream)
        whole = json.loads(DiskObjects(directory / "storage" / "raw").get(sent["claim_check"]["key"]))
        assert len(whole["turns"][0]["action"]["raw_response"]) == 600_000
        outbox.close(0)

    def test_what_is_sent_is_what_importing_the_file_would_make(
        self, open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
    ) -> None:
        outbox = open_outbox(nats_server.url)
        call = StreamChunk("tool_calls", tool_calls=[{"id": "v", "name": "vote", "arguments": "{}"}])
        agent = RLSingleAgent(
            Backend([call]), enable_rl=True, rl_config=RLConfig(store_config=StoreConfig("remote", outbox=outbox))
        )
        orchestrator = RLOrchestrator({"a": agent}, script=coordinate, enable_rl=True, rl_config=agent.rl_config)
        asyncio.run(read(agent.chat(ASKED)))
        asyncio.run(read(orchestrator.chat(ASKED)))
        voted, coordinated = sent_by(outbox, stream)
        [turn] = voted["turns"]
        assert (turn["observation"]["content"], turn["action"]["tool_name"]) == (ASKED[0]["content"], "vote")
        assert coordinated["metadata"]["coordination"] == {
            "rounds": 2,
            "consensus": True,
            "restarts": 1,
            "votes": [{"vote_for": one, "agent_id": voter} for one, voter in (("b", "b"), ("a", "b"), ("a", "a"))],
        }
        assert coordinated["task_context"]["reward"] == pytest.approx(coordinated["metadata"]["source"]["total_reward"])
