"""`make demo`: what is built of the loop, for real: agents publish, Dagster ingests, scores and trains, secrets stay
behind."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory, TemporaryFile
from time import monotonic
from uuid import uuid4

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import (
    TrainingRequest,
    TrainingStatus,
    Trajectory,
    parse_message,
    serialize,
    validate_trajectory,
)
from rl_pipeline.embedded.stack import Stack, running_stack
from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion.dead_letters import show_dead_letter
from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.opening import open_stream, open_warehouse
from rl_pipeline.settings import Settings
from rl_pipeline.stores.object_addresses import open_objects
from rl_pipeline.stores.stream import OutgoingMessage, Stream
from rl_pipeline.stores.topology import TRAINING, TRAJECTORIES
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.checkpoints.releasing import download_checkpoint
from rl_pipeline.training.checkpoints.signing import PublicKeys
from rl_pipeline.training.plans.base_models import EMBEDDED

_TRAJECTORIES = 200
_TASKS, _ATTEMPTS = 240, 4
_PATIENCE_SECONDS = 180.0
_PATIENCE_FOR_TRAINING = 900.0
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
        _train(stack, tell)


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


def _train(stack: Stack, tell: Callable[[str], None]) -> None:
    """A small model attempts tasks, and Dagster trains it on what came of that."""
    model = stack.settings.rl_pipeline_home / "models" / EMBEDDED
    tell("\nNow an agent that can learn: a small transformer, made here, that half knows how to craft things.")
    made = _experience(stack, model)
    wins = sum(one.task_context.task_status == "success" for one in made)
    tell(f"It made {len(made)} attempts at {_TASKS} tasks and succeeded in {wins}. Dagster trains it on them by RLOO:")
    request = TrainingRequest.model_validate(
        {
            "training_job_id": f"demo-{uuid4()}",
            "timestamp": datetime.now(UTC),
            "requester": "demo",
            "trigger_reason": "manual",
            "training_config": {"algorithm": "rloo", "dataset": {"filter": {"task_domains": ["general"]}}},
        }
    )
    with open_stream(stack.settings) as stream:
        first = stream.state(TRAINING.name).last_sequence + 1
        stream.publish_many([*map(outgoing_message, made), outgoing_message(request)])
        follower = _Follower(stream, request.training_job_id, first, tell)
        _await(stack, "trained nothing", follower.has_ended, _PATIENCE_FOR_TRAINING)
    if follower.last is None or follower.last.status != "completed":
        raise DemoFailed(f"the training did not complete: see `rl-pipeline jobs {request.training_job_id}`")
    _show_checkpoint(stack, request.training_job_id, tell)


def _experience(stack: Stack, model: Path) -> list[Trajectory]:
    """What the model does, played in a process of its own: what trains stays out of this one."""
    numbers = [str(number) for number in (_TASKS, _ATTEMPTS, SystemRandom().getrandbits(32))]
    program = [sys.executable, "-m", "rl_pipeline.training.small_model.experience", str(model), *numbers]
    with TemporaryFile() as made, TemporaryFile() as said:
        player = subprocess.Popen(program, stdout=made, stderr=said)  # noqa: S603 - the program is our own
        try:
            _await(stack, "got no experience", lambda: player.poll() is not None, _PATIENCE_FOR_TRAINING)
        finally:
            player.kill()
        said.seek(0)
        if player.wait() != 0:
            raise DemoFailed(f"the small model could not play: {said.read().decode().strip().splitlines()[-1]}")
        made.seek(0)
        return [validate_trajectory(json.loads(line)) for line in made if line.startswith(b"{")]


class _Follower:
    """Tells what a job says of itself."""

    def __init__(self, stream: Stream, job_id: str, first: int, tell: Callable[[str], None]) -> None:
        self.last: TrainingStatus | None = None
        self._stream, self._job_id, self._next, self._tell = stream, job_id, first, tell

    def has_ended(self) -> bool:
        """Whether the job has come to its end, after telling what it said since the last time."""
        end = self._stream.state(TRAINING.name).last_sequence
        for message in (one for batch in self._stream.read(TRAINING.name, self._next, end, 100) for one in batch):
            said = parse_message(message.subject, message.data)
            if isinstance(said, TrainingStatus) and said.training_job_id == self._job_id:
                self.last = said
                self._tell(_told(said))
        self._next = max(self._next, end + 1)
        return self.last is not None and self.last.status in ("completed", "failed", "cancelled")


def _told(said: TrainingStatus) -> str:
    step, figures = said.progress, said.metrics and said.metrics.current
    place = f" {step.percent_complete:3.0f} %" if step and step.percent_complete is not None else ""
    reward = f", reward {figures.reward_mean:.2f}" if figures and figures.reward_mean is not None else ""
    return f"  {said.timestamp:%H:%M:%S} {said.status}{place}{reward}{f': {said.error.message}' if said.error else ''}"


def _show_checkpoint(stack: Stack, job_id: str, tell: Callable[[str], None]) -> None:
    with closing(open_warehouse(stack.settings)) as tables:
        found = tables.query("SELECT * FROM model_checkpoints FINAL WHERE job_id = {job:String}", {"job": job_id})
    [row] = found.to_dicts()
    measures = json.loads(row["performance_metrics"])
    before, after = (measures[when]["success_sampled"] for when in ("base", "final"))
    tell(f"\nOn tasks that it was not trained on it succeeds in {after:.0%} of its attempts; before, in {before:.0%}.")
    keys = PublicKeys.parse(stack.settings.checkpoint_public_keys or "")
    above, _, _ = row["checkpoint_path"].rpartition(f"/{row['id']}")
    with TemporaryDirectory() as directory:
        place = Path(directory, "checkpoint")
        manifest = download_checkpoint(open_objects(above), row["id"], place, keys, row["manifest_sha256"])
    tell(
        f"Its checkpoint is {row['checkpoint_path']}: {len(manifest.files)} files, signed by {row['key_id']}, verified."
    )


def _await(stack: Stack, otherwise: str, done: Callable[[], bool], patience_seconds: float = _PATIENCE_SECONDS) -> None:
    """Until Dagster's sensors have seen what there is to do, and their runs have done it."""
    deadline = monotonic() + patience_seconds
    while not stack.supervisor.stop_requested.wait(0.5):
        stack.supervisor.tick()
        if done():
            return
        if monotonic() > deadline:
            raise DemoFailed(
                f"Dagster {otherwise} in {patience_seconds:.0f} s: see the logs in {stack.settings.rl_pipeline_home}"
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
