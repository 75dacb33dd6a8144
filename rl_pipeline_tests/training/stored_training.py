"""Trainings on what really was recorded, published, ingested and scored: jobs are asked for, accepted and carried out.

Everything is real but Dagster's daemon: a test takes the sensor's looks itself.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, cast

import dagster as dg
import psutil

from rl_pipeline.assets.redacted_trajectories import raw_and_redacted_trajectories
from rl_pipeline.assets.trajectory_rewards import trajectory_rewards
from rl_pipeline.assets.trajectory_stream import trajectory_stream
from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.contracts import TrainingCancel, TrainingRequest, TrainingStatus, Trajectory, parse_message, serialize
from rl_pipeline.curation.curating import CuratedDataset, curate
from rl_pipeline.curation.policy import CurationPolicy
from rl_pipeline.environments.crafting import COMMANDS, CraftingWorld, next_command
from rl_pipeline.environments.playing import Conversation, play
from rl_pipeline.environments.recording import Recorder
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.rewards import RewardsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.rewards.configuration import DEFAULT_WEIGHTS
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.lease import keep
from rl_pipeline.stores.mlflow_tracker import MLflowTracker
from rl_pipeline.stores.object_addresses import ObjectsAddress
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.topology import TRAINING, TRAJECTORIES, bootstrap
from rl_pipeline.training.attempting import FinishedTraining
from rl_pipeline.training.carrying_out import AttemptRun, CompletedAttempt, carry_out_attempt
from rl_pipeline.training.checkpoints.signing import PublicKeys, SigningKey, new_signing_key
from rl_pipeline.training.checkpoints.storage import saving
from rl_pipeline.training.jobs.advancing import TRAINING_LEASE, ImportRuns, Tick, advance
from rl_pipeline.training.jobs.cancelling import CANCELLATIONS_CONSUMER
from rl_pipeline.training.jobs.job import Attempt, Job
from rl_pipeline.training.jobs.requests import REQUESTS_CONSUMER, Defaults, StartingPoint
from rl_pipeline.training.jobs.rows import attempts_of, begin_attempt, job_of
from rl_pipeline.training.jobs.silence import Silence
from rl_pipeline.training.jobs.statuses import STATUS_SUBJECT
from rl_pipeline.training.plans.base_models import BaseModels
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.site import TrainingSite
from rl_pipeline.training.work_directory import WorkDirectory
from rl_pipeline_tests.fixtures.ingest import REDACTION_KEY
from rl_pipeline_tests.fixtures.nats import remove_all_streams
from rl_pipeline_tests.training.job_tables import migrated_database, wait_for_pending

WORLD = CraftingWorld()
# Nobody answers there, and at once.
NOWHERE = "http://127.0.0.1:1"
# As many chat templates do, this one refuses an agent that speaks twice in a row.
_UNREADABLE = "no template reads this"
_STRICTNESS = f"""\
{{%- for message in messages %}}
{{%- if '{_UNREADABLE}' in message.content %}}
{{{{- raise_exception('it reads no such thing') }}}}
{{%- endif %}}
{{%- endfor %}}
"""
_TABLES_OF_JOBS = (
    *("training_jobs", "training_attempts", "datasets", "dataset_provenance", "quarantined_trajectories"),
    *("imported_trajectories", "model_checkpoints", "checkpoint_datasets"),
)


def recorded_episodes(tasks: int, attempts: int, *, seed: int = 1) -> list[Trajectory]:
    """Attempts at crafting by a script that knows the way: each further one at a task slips more often."""
    chosen = [task for task in WORLD.tasks(tasks, seed=seed, tiers=(1, 2)) for _ in range(attempts)]
    own, randomness = [WORLD.open(task) for task in chosen], Random(seed)

    def act(conversations: Sequence[Conversation]) -> list[str]:
        said = []
        for one in conversations:
            environment = own[one.number]
            slips = randomness.random() < 0.25 * (one.number % attempts)
            said.append(randomness.choice(COMMANDS) if slips else next_command(environment.goal, environment.inventory))
            environment.step(said[-1])
        return said

    recorder = Recorder(WORLD, "crafting-agent", "scripted", "scripted-v1")
    return recorder.record(play(WORLD, chosen, act), start=datetime.now(UTC), randomness=randomness)


def unreadable(trajectory: Trajectory) -> Trajectory:
    """The trajectory, of another domain, with something that the strict model's template refuses."""
    first, *others = trajectory.turns
    shown = first.model_copy(update={"observation": first.observation.model_copy(update={"content": _UNREADABLE})})
    elsewhere = trajectory.task_context.model_copy(update={"domain": "research"})
    return trajectory.model_copy(update={"turns": [shown, *others], "task_context": elsewhere})


@contextmanager
def scored_database(
    nats_url: str, clickhouse_url: str, trajectories: Sequence[Trajectory]
) -> Iterator[ClickHouseWarehouse]:
    """A database of which Dagster has made what it makes of the trajectories: ingested, redacted and scored."""
    with migrated_database(clickhouse_url) as tables, JetStream.connect(nats_url) as messages:
        remove_all_streams(messages)
        bootstrap(messages)
        for one in trajectories:
            messages.publish("agent.rl.trajectory.v1", serialize(one), one.trajectory_id)
        resources = {
            "stream": StreamResource(url=nats_url),
            "warehouse": WarehouseResource(url=clickhouse_url, database=tables.database),
            "ingest": IngestResource(redaction_key=REDACTION_KEY, objects_url="unused"),
            "rewards": RewardsResource(weights=DEFAULT_WEIGHTS),
        }
        day = messages.get(TRAJECTORIES.name, 1).time.date().isoformat()
        for assets in ([trajectory_stream, raw_and_redacted_trajectories], [trajectory_rewards]):
            assert dg.materialize(assets, partition_key=day, resources=resources).success
        yield tables


def without_jobs(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    """The database with its trajectories and rewards, and nothing of any training."""
    for table in _TABLES_OF_JOBS:
        tables.execute(f"TRUNCATE TABLE {table}")
    return tables


def write_strict_model(directory: Path, *, breadth: int = 32) -> None:
    """A model of random weights whose chat template reads not everything. The broader, the more memory a step takes."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, set_seed

    from rl_pipeline.training.small_model.tokenizer import CHAT_TEMPLATE, train_tokenizer

    tokenizer = train_tokenizer([f"{WORLD.instructions} Goal: Have nothing", *COMMANDS], vocabulary=400)
    tokenizer.chat_template = _STRICTNESS + CHAT_TEMPLATE
    set_seed(7)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=breadth,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def leave_trained(work: WorkDirectory, plan: TrainingPlan, **result: Any) -> FinishedTraining:
    """What the program leaves behind when it is done; the model is none."""
    told = {"steps": 5, "seconds": 60.0, "tokens": 1000, "measure": None, "base": {}, "final": {}, "improvement": None}
    work.attempt_directory.mkdir(parents=True)
    work.plan_file.write_text(plan.model_dump_json())
    work.result_file.write_text(json.dumps({**told, **result}))
    with saving(work.final, {"job_id": plan.job_id, "step": 5, "created": datetime.now(UTC)}) as staging:
        (staging / "model.safetensors").write_text(plan.job_id)
    return FinishedTraining(plan, work, {**told, **result})


@dataclass
class TrainingPlace:
    """Where jobs are asked for and carried out. Time passes only when a look is taken later than it is."""

    messages: JetStream
    tables: ClickHouseWarehouse
    nats_url: str
    directory: Path
    """Of work, datasets and models; base models lie in `models` by name."""
    signing_key: SigningKey = field(default_factory=new_signing_key)
    tracking_uri: str = NOWHERE
    world_size: int = 1
    """More than one train under DeepSpeed."""
    passed: timedelta = timedelta()

    def ask(
        self,
        job_id: str,
        *,
        algorithm: str = "sft",
        base_model: str | None = "strict",
        domains: Sequence[str] = ("general",),
        filters: Mapping[str, Any] | None = None,
        source: Mapping[str, Any] | None = None,
        priority: str = "normal",
        save_interval: int = 1,
        shadow: bool = False,
        evaluation: bool = True,
        **hyperparameters: Any,
    ) -> None:
        """Ask for a training."""
        asked = {"task_domains": list(domains), **(filters or {})}
        dataset = {"source": "clickhouse", "sample_size": 1000, "filter": asked, **(source or {})}
        request = {
            "training_job_id": job_id,
            "timestamp": datetime.now(UTC),
            "requester": "tests",
            "trigger_reason": "manual",
            "priority": priority,
            "training_config": {
                "algorithm": algorithm,
                "base_model": base_model,
                "dataset": dataset,
                "checkpointing": {"save_interval": save_interval},
                "hyperparameters": hyperparameters,
            },
            "evaluation": {"enabled": evaluation},
            "metadata": {"shadow": shadow},
        }
        self._publish(TrainingRequest.model_validate(request))

    def cancel(self, job_id: str) -> None:
        """Ask for the end of a job."""
        asked = {"training_job_id": job_id, "timestamp": datetime.now(UTC), "requester": "ada"}
        self._publish(TrainingCancel.model_validate(asked))

    def look(self, later: timedelta = timedelta()) -> Tick:
        """What the sensor does, so much later than the last time. Runs are over once their attempts are."""
        self.passed += later
        return advance(
            *(self.messages, self.tables, JetStreamLeases(self.messages)),
            run_state=lambda attempt: "started" if attempt.has_begun else "missing",
            import_runs=lambda _: ImportRuns(),
            unfinished_imports={},
            silence=Silence(),
            defaults=Defaults("sft", lambda: StartingPoint("strict")),
            redactor=lambda: Redactor(RedactionPolicy(RedactionKey("v1", REDACTION_KEY.encode()))),
            trajectories=TRAJECTORIES.name,
            sensor="sensor",
            now=datetime.now(UTC) + self.passed,
        )

    def started(self, later: timedelta = timedelta()) -> Attempt:
        """The attempt whose run a look asks for."""
        [attempt] = self.look(later).starts
        return attempt

    def curated(self, attempt: Attempt) -> CuratedDataset:
        """Make the dataset of an attempt that begins with it."""
        job, attempts = self._begun(attempt)
        return curate(
            self.tables,
            self.datasets,
            job_id=job.job_id,
            request=job.request,
            accepted_at=job.accepted_at,
            algorithm=job.request.training_config.algorithm or "sft",
            revision=sum(each.starts_from == "dataset" for each in attempts),
            now=datetime.now(UTC),
            watermark=job.watermark,
            policy=CurationPolicy(),
            work=self.directory / "work",
        )

    def carry_out(
        self,
        attempt: Attempt,
        *,
        models: Objects | None = None,
        tell: Callable[[str], None] = lambda _: None,
        hear: Callable[[Mapping[str, Any]], None] = lambda _: None,
        canceling: bool = False,
        stall_seconds: float = 600.0,
        memory_limit_gb: float | None = None,
        signs: bool = True,
    ) -> CompletedAttempt:
        """What the run of an attempt does, from its dataset on."""
        job, attempts = self._begun(attempt)
        with keep(JetStreamLeases(self.messages), TRAINING_LEASE, owner=attempts[-1].holder, seconds=60) as lease:
            run = AttemptRun(
                job=job,
                attempts=tuple(attempts),
                site=TrainingSite(
                    work=self.directory / "work",
                    models=self.directory / "models",
                    processes=self.world_size,
                    memory_limit_gb=memory_limit_gb,
                    stall_seconds=stall_seconds,
                ),
                tables=self.tables,
                base_models=BaseModels(
                    self.directory / "models",
                    lambda url: ObjectsAddress(url).open(),
                    PublicKeys.parse(self.signing_key.public_text()),
                ),
                datasets=self.datasets,
                models=models or self.models,
                tracker=MLflowTracker(self.tracking_uri),
                signing_key=self.signing_key if signs else None,
                lease=lease,
                environment=self.environment,
                tell=tell,
                hear=hear,
            )
            return carry_out_attempt(run, is_canceling=lambda: canceling)

    def resources(self, clickhouse_url: str, **training: Any) -> dict[str, Any]:
        """What Dagster's assets and sensors find all of this by."""
        fields = {
            "algorithm": "sft",
            "base_model": "strict",
            "work_directory": str(self.directory / "work"),
            "import_directory": str(self.directory / "imports"),
            "model_directory": str(self.directory / "models"),
            "objects_url": str(self.directory),
            "tracking_uri": self.tracking_uri,
            "signing_key": self.signing_key.as_text(),
            "public_keys": self.signing_key.public_text(),
        }
        return {
            "stream": StreamResource(url=self.nats_url),
            "warehouse": WarehouseResource(url=clickhouse_url, database=self.tables.database),
            "ingest": IngestResource(redaction_key=REDACTION_KEY, objects_url=str(self.directory)),
            "rewards": RewardsResource(weights=DEFAULT_WEIGHTS),
            "training": TrainingResource(**{**fields, **training}),
            "model_objects": ObjectsResource(url=str(self.directory / "released")),
        }

    @property
    def environment(self) -> dict[str, str]:
        """Of the program; of one process as on a machine without a compiler."""
        path = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": path if self.world_size == 1 else f"{path}:{os.environ['PATH']}",
            "NATS_URL": self.nats_url,
            "MLFLOW_TRACKING_URI": self.tracking_uri,
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        }

    @property
    def datasets(self) -> DiskObjects:
        return DiskObjects(self.directory / "datasets")

    @property
    def models(self) -> DiskObjects:
        return DiskObjects(self.directory / "released")

    def job(self, job_id: str) -> Job:
        return job_of(self.tables, job_id)

    def attempts(self, job_id: str) -> list[Attempt]:
        return attempts_of(self.tables, [job_id])[job_id]

    def plan(self, job_id: str) -> TrainingPlan:
        """Of the newest attempt that has one."""
        planned = [attempt.plan for attempt in self.attempts(job_id) if attempt.plan]
        return TrainingPlan.model_validate_json(planned[-1])

    def work(self, attempt: Attempt) -> WorkDirectory:
        return WorkDirectory(self.directory / "work" / attempt.job_id, attempt.number)

    def statuses(self, job_id: str) -> list[TrainingStatus]:
        """All that was said of a job, each a valid message."""
        last = self.messages.state("RL_TRAINING").last_sequence
        stored = [message for batch in self.messages.read("RL_TRAINING", 1, last, 100) for message in batch]
        found = [parse_message(one.subject, one.data) for one in stored if one.subject == STATUS_SUBJECT]
        return [status for status in cast("list[TrainingStatus]", found) if status.training_job_id == job_id]

    def processes(self, job_id: str) -> list[psutil.Process]:
        """All that run for a job, wherever they belong."""
        return [process for process in psutil.process_iter() if _works_in(process, self.directory / "work" / job_id)]

    def _begun(self, attempt: Attempt) -> tuple[Job, list[Attempt]]:
        return begin_attempt(self.tables, attempt.job_id, f"run-{attempt.number}", attempt.tags, datetime.now(UTC))

    def _publish(self, content: TrainingRequest | TrainingCancel) -> None:
        consumer = REQUESTS_CONSUMER if isinstance(content, TrainingRequest) else CANCELLATIONS_CONSUMER
        known = self.messages.request(f"CONSUMER.INFO.{TRAINING.name}.{consumer}")["num_pending"]
        message = outgoing_message(content)
        self.messages.publish(message.subject, message.data, message.message_id)
        wait_for_pending(self.messages, consumer, known + 1)


def _works_in(process: psutil.Process, directory: Path) -> bool:
    try:
        return str(directory) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
