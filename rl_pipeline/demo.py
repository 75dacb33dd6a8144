"""`make demo`: what is built of the loop, for real: agents publish, Dagster ingests and scores, secrets stay behind."""

import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from random import SystemRandom
from time import monotonic

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import serialize, validate_trajectory
from rl_pipeline.embedded.stack import Stack, running_stack
from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion.dead_letters import show_dead_letter
from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.opening import open_stream, open_warehouse
from rl_pipeline.settings import Settings
from rl_pipeline.stores.stream import OutgoingMessage
from rl_pipeline.stores.topology import TRAJECTORIES
from rl_pipeline.stores.warehouse import Warehouse

_TRAJECTORIES = 200
_PATIENCE_SECONDS = 180.0
_LEAK = "The deploy failed: password = 'correct-horse-7-battery', tell ops@northwind.example about it."
_VERDICTS = "SELECT verdict, count() AS messages FROM trajectory_ledger FINAL GROUP BY verdict ORDER BY verdict"
_DOMAINS = """
    SELECT domain, count() AS trajectories, round(avg(turns), 2) AS mean_turns,
        round(countIf(task_status = 'success') / count(), 2) AS success_share
    FROM trajectories FINAL GROUP BY domain ORDER BY domain
"""
_RULES = "SELECT rule, sum(redactions) AS redactions FROM redaction_audit GROUP BY rule ORDER BY rule"
_REWARDS = """
    SELECT task_type, count() AS trajectories, round(avg(raw_total), 3) AS raw_mean, round(avg(total), 3) AS mean
    FROM trajectory_rewards GROUP BY task_type ORDER BY task_type
"""
_WORST = """
    SELECT term, score, evidence FROM (SELECT * FROM trajectory_rewards ORDER BY raw_total, trajectory_id LIMIT 1)
    ARRAY JOIN terms AS term, scores AS score, evidences AS evidence
"""
_SCORED = "SELECT count() AS n FROM trajectory_rewards"
_ACCEPTED = "SELECT count() AS n FROM trajectories FINAL"
_LEAKED = "SELECT document FROM trajectories FINAL WHERE agent_id = 'careless-agent' ORDER BY sequence DESC LIMIT 1"


class DemoFailed(PipelineError):
    """The demo did not come to its end; the text says where to look."""


def run_demo(settings: Settings, *, tell: Callable[[str], None], prepare_stores: Callable[[Settings], None]) -> None:
    """Start a stack of its own, publish to it, and show what Dagster made of it."""
    foreign = [name.upper() for name in ("nats_url", "clickhouse_url") if name in settings.model_fields_set]
    if foreign:
        raise DemoFailed(f"the demo makes up data and must not reach real servers: unset {' and '.join(foreign)}")
    home = settings.rl_pipeline_home.resolve() / "demo"
    objects = str(home / "objects")
    own = {"dagster_home": None, "model_storage_path": objects, "trajectory_storage_path": objects}
    apart = settings.model_copy(update={"rl_pipeline_home": home, **own})
    with running_stack(apart, report=tell, prepare_stores=prepare_stores) as stack:
        if stack.supervisor.stop_requested.is_set():
            raise DemoFailed("interrupted")
        last = _publish(stack, tell)
        with closing(open_warehouse(stack.settings)) as tables:
            _await(stack, "ingested nothing", lambda: ledger_watermark(tables, TRAJECTORIES.name) >= last)
            _show(tables, tell)
            stored = tables.query(_ACCEPTED)["n"][0]
            _await(stack, "scored nothing", lambda: tables.query(_SCORED)["n"][0] >= stored)
            _show_rewards(tables, tell)
        with open_stream(stack.settings) as stream:
            letter = show_dead_letter(stream, TRAJECTORIES.name, last)
        tell(f"\nThe broken message is a dead letter: {letter.reason} at {letter.path}; {letter.advice}")


def _publish(stack: Stack, tell: Callable[[str], None]) -> int:
    """Made-up trajectories, one of an agent that wrote a password down, and one message that is no trajectory."""
    samples = list(sample_trajectories(_TRAJECTORIES + 1, now=datetime.now(UTC), randomness=SystemRandom()))
    careless = json.loads(serialize(samples[0])) | {"agent_id": "careless-agent"}
    careless["turns"][0]["observation"]["content"] = _LEAK
    messages = [outgoing_message(sample) for sample in [validate_trajectory(careless), *samples[1:]]]
    broken = OutgoingMessage(messages[0].subject, messages[0].data[:-1], f"broken-{messages[0].message_id}")
    with open_stream(stack.settings) as stream:
        started = monotonic()
        stored = stream.publish_many([*messages, broken])
        took = monotonic() - started
    last = max(published.sequence for published in stored)
    tell(f"\n{len(stored)} messages are on disk in JetStream after {took:.2f} s, the last as sequence {last}")
    return last


def _await(stack: Stack, otherwise: str, done: Callable[[], bool]) -> None:
    """Until Dagster's sensors have seen what there is to do, and their runs have done it."""
    deadline = monotonic() + _PATIENCE_SECONDS
    while not stack.supervisor.stop_requested.wait(0.5):
        stack.supervisor.tick()
        if done():
            return
        if monotonic() > deadline:
            raise DemoFailed(
                f"Dagster {otherwise} in {_PATIENCE_SECONDS:.0f} s: see the logs in {stack.settings.rl_pipeline_home}"
            )
    raise DemoFailed("interrupted")


def _show(tables: Warehouse, tell: Callable[[str], None]) -> None:
    tell(f"\nDagster has ingested them. What became of the messages:\n{tables.query(_VERDICTS)}")
    tell(f"\nThe trajectories by domain:\n{tables.query(_DOMAINS)}")
    tell(f"\nWhat was redacted, by rule:\n{tables.query(_RULES)}")
    document = json.loads(tables.query(_LEAKED)["document"][0])
    tell(f"\nOne agent was careless. It published:\n  {_LEAK}")
    tell(f"ClickHouse has:\n  {document['turns'][0]['observation']['content']}")


def _show_rewards(tables: Warehouse, tell: Callable[[str], None]) -> None:
    tell(f"\nDagster has scored them. The rewards by task type:\n{tables.query(_REWARDS)}")
    reasons = [f"  {term:<16} {score:.2f}  {why}" for term, score, why in tables.query(_WORST).iter_rows()]
    tell("\nWhy the worst of them is the worst:\n" + "\n".join(reasons))
