"""How much of the machine goes into the training itself?

One SFT of the small model's architecture on demonstrations of the crafting world, one process, one thread, the same
batches for all, measured in CPU time per step from the end of the fifth step to the end of the last. In turns:

- the program: the trainer as `training_program` uses it, with progress file, status messages to a real NATS server,
  curves to MLflow on SQLite, a check for stops and lost losses after every step, and states saved as often as the small
  model's preset has it (figures every 5 steps, a state every 20);
- `of_plain_trl`: TRL's own SFTTrainer, nothing else;
- `of_bare_loop`: a loop of a dozen lines in PyTorch.

Both are ratios of tokens per CPU second, the median over rounds in which neighbours are compared; `of_plain_trl_wall`
and `of_bare_loop_wall` are the same by the clock on the wall, in which the waiting for the disk is, and other work.
`tracking_cost` is what the program spends on all but the training (its other threads, reports, checks, states) over
what it spends on the training. What is done once (imports, connecting, MLflow's tables) happens before the clock runs.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

# One thread, and nobody to ask: read by the libraries as they are imported.
os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TQDM_DISABLE": "1"})
os.environ.update({"TORCHDYNAMO_DISABLE": "1", "DS_ACCELERATOR": "cpu"})

import polars as pl
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    get_scheduler,
)
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for its neighbours, when started as a script

from rl_pipeline.curation.manifest import Manifest
from rl_pipeline.embedded.nats_server import running_nats_server
from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.mlflow_tracker import MLflowTracker
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline.stores.tracker import TrackedDataset
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.dataset import manifest_of
from rl_pipeline.training.program.imitation import demonstrations, imitation_trainer
from rl_pipeline.training.program.listeners import StatusMessages, TrackedFigures
from rl_pipeline.training.program.models import load_tokenizer
from rl_pipeline.training.program.reporting import Listener, Reporter
from rl_pipeline.training.program.session import Session
from rl_pipeline.training.program.stopping import StopRequest
from rl_pipeline.training.small_model.demonstrations import demonstrate
from rl_pipeline.training.small_model.tokenizer import train_tokenizer
from rl_pipeline.training.small_model.warm_start import new_model
from rl_pipeline.training.work_directory import WorkDirectory

BATCH, LEARNING_RATE, LOG_INTERVAL, SAVE_INTERVAL, WARM_STEPS = 16, 1e-3, 5, 20, 5
ROWS = 320


class Seconds(NamedTuple):
    """What a step takes."""

    cpu: float
    wall: float


class Clock(TrainerCallback):
    """CPU time of this process, all its threads, and the time on the wall at the end of each step."""

    def __init__(self) -> None:
        self.marks: list[Seconds] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.marks.append(Seconds(time.process_time(), time.perf_counter()))

    @property
    def seconds_per_step(self) -> Seconds:
        first, last, steps = self.marks[WARM_STEPS - 1], self.marks[-1], len(self.marks) - WARM_STEPS
        return Seconds((last.cpu - first.cpu) / steps, (last.wall - first.wall) / steps)


class Others(TrainerCallback):
    """Starts the meter, and adds what the other threads of this process have spent when the training is over."""

    def __init__(self, meter: "Meter") -> None:
        self._meter = meter
        self._others = 0.0

    def on_step_end(self, args: Any, state: TrainerState, *_: Any, **__: Any) -> None:  # noqa: ARG002  of the Trainer
        others = time.process_time() - time.thread_time()
        if state.global_step == WARM_STEPS:
            self._meter.runs, self._others = True, others
        elif state.global_step == state.max_steps:
            self._meter.runs, self._meter.seconds = False, self._meter.seconds + others - self._others


class Meter:
    """CPU time that goes into something else than the training, from the end of the fifth step on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.runs = False

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, metered."""

        def metered(*arguments: Any, **more: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*arguments, **more)
            finally:
                self.seconds += (time.thread_time() - began) * self.runs

        return metered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, under a minute")
    quick = parser.parse_args().quick
    steps, rounds = (25, 3) if quick else (105, 9)
    with tempfile.TemporaryDirectory() as scratch:
        job = Job(Path(scratch), steps)
        with listeners(Path(scratch), job.plan) as heard:
            job.program(heard)  # connects
            job.tracking.clear()
            turns = {"program": lambda: job.program(heard), "plain TRL": job.plain_trl, "bare loop": job.bare_loop}
            seconds = in_turns(turns, rounds)
        report(seconds, job)


def in_turns(turns: dict[str, Callable[[], Seconds]], rounds: int) -> dict[str, list[Seconds]]:
    """The figures of each, taken in turns: what disturbs one disturbs its neighbours."""
    seconds: dict[str, list[Seconds]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            seconds[name].append(turn())
    return seconds


class Job:
    """The training that all do."""

    def __init__(self, directory: Path, steps: int) -> None:
        self.work = WorkDirectory(directory / "job", 1)
        self.steps = steps
        self.plan = plan_of(steps)
        write_inputs(self.work)
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(self.work.base)
        self.rows = demonstrations(self.session(), "train")
        self.dataset = Dataset.from_list(self.rows)
        self.collate = DataCollatorForLanguageModeling(pad_token_id=self.tokenizer.pad_token_id)
        self.tracking: list[float] = []
        self.tokens_per_step = BATCH * sum(len(row["input_ids"]) for row in self.rows) / len(self.rows)

    def program(self, heard: Sequence[Listener]) -> Seconds:
        """Per step of the program's trainer; notes how many of them were not for the training."""
        shutil.rmtree(self.work.checkpoints, ignore_errors=True)
        reporter, meter = Reporter(self.work.root / "progress.jsonl", heard), Meter()
        trainer = imitation_trainer(replace(self.session(), reporter=reporter))
        for owner, names in ((trainer, ("at_step_end", "_save_checkpoint")), (reporter, ("step", "log"))):
            for name in names:
                setattr(owner, name, meter.around(getattr(owner, name)))
        trainer.add_callback(Others(meter))
        seconds = timed(trainer)
        self.tracking.append(meter.seconds / (self.steps - WARM_STEPS))
        return seconds

    def plain_trl(self) -> Seconds:
        """Per step of TRL's own trainer."""
        arguments = SFTConfig(
            output_dir=str(self.work.root / "trl"),
            seed=0,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="cosine",
            per_device_train_batch_size=BATCH,
            max_steps=self.steps,
            logging_steps=LOG_INTERVAL,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            disable_tqdm=True,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        model = AutoModelForCausalLM.from_pretrained(self.work.base)
        trainer = SFTTrainer(model=model, args=arguments, train_dataset=self.dataset, processing_class=self.tokenizer)
        trainer.remove_callback(PrinterCallback)
        return timed(trainer)

    def bare_loop(self) -> Seconds:
        """Per step of what could be written in a minute."""
        model = AutoModelForCausalLM.from_pretrained(self.work.base)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        schedule = get_scheduler("cosine", optimizer, 0, self.steps)
        order = torch.Generator().manual_seed(0)
        batches: Any = DataLoader(self.rows, BATCH, shuffle=True, collate_fn=self.collate, generator=order)  # type: ignore[arg-type]
        clock = Clock()
        while len(clock.marks) < self.steps:
            for batch in batches:
                model(**batch, use_cache=False).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                clock.on_step_end()
                if len(clock.marks) == self.steps:
                    break
        return clock.seconds_per_step

    def session(self) -> Session:
        """What the program knows of this job."""
        return Session(
            plan=self.plan,
            work=self.work,
            rank=0,
            world_size=1,
            device=torch.device("cpu"),
            base=self.work.base,
            dataset_hash=manifest_of(self.work.dataset).hash,
            tokenizer=self.tokenizer,
            reporter=Reporter(None),
            stop=StopRequest(),
        )


def plan_of(steps: int) -> TrainingPlan:
    """One plain process, with the intervals of the small model's preset."""
    parts = {
        "distribution": {"deepspeed": False},
        "optimization": {"learning_rate": LEARNING_RATE, "micro_batch": BATCH, "max_steps": steps},
        "checkpoints": {"save_interval": SAVE_INTERVAL},
        "log_interval": LOG_INTERVAL,
    }
    names = {"job_id": "benchmark", "algorithm": "sft", "base_model": "embedded-small"}
    return TrainingPlan.model_validate_json(json.dumps(names | parts))


def timed(trainer: Trainer) -> Seconds:
    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    return clock.seconds_per_step


@contextmanager
def listeners(directory: Path, plan: TrainingPlan) -> Iterator[list[Listener]]:
    """What the program tells of itself, to servers that are there."""
    tracker = MLflowTracker(f"sqlite:///{directory / 'mlflow.db'}")
    dataset = TrackedDataset("benchmark", "0" * 64, "benchmark")
    with running_nats_server(directory / "nats", sync_always=False) as server:
        with JetStream.connect(server.url) as stream:
            bootstrap(stream)
        heard: list[Listener] = [
            StatusMessages(plan, lambda: JetStream.connect(server.url)),
            TrackedFigures(plan, lambda: dataset, tracker),
        ]
        yield heard
        for listener in heard:
            listener.close("completed")


def write_inputs(work: WorkDirectory) -> None:
    """A base model and a dataset in a work directory."""
    world, randomness = CraftingWorld(), Random(0)
    played = [demonstrate(world, task, randomness) for task in world.tasks(ROWS, seed=0)]
    tokenizer = train_tokenizer((message["content"] for each in played for message in each.messages), 512)
    new_model(tokenizer, 0).save_pretrained(work.base)
    tokenizer.save_pretrained(work.base)
    rows = []
    for number, each in enumerate(played):
        flags = iter(each.imitated)
        messages = [{**message, "trained": message["role"] == "assistant" and next(flags)} for message in each.messages]
        names = {"trajectory_id": str(number), "split": "train", "role": "demonstration"}
        rows.append({**names, "messages": json.dumps(messages)})
    work.dataset.mkdir()
    pl.DataFrame(rows).write_parquet(work.dataset / "conversations.parquet")
    manifest = Manifest("benchmark", "benchmark", 1, "2026-01-01T00:00:00Z", {"files": []}, {})
    (work.dataset / "manifest.json").write_bytes(manifest.encoded())


def report(seconds: dict[str, list[Seconds]], job: Job) -> None:
    tokens_per_step, tracking = job.tokens_per_step, statistics.median(job.tracking)
    print(f"SFT, batches of {BATCH} x {tokens_per_step / BATCH:.0f} tokens, one thread, CPU time\n")
    print(f"{'':<20}{'ms per step':>14}{'tokens per CPU s':>20}")
    for name, each in seconds.items():
        median = statistics.median(one.cpu for one in each)
        print(f"{name:<20}{1000 * median:>14.1f}{tokens_per_step / median:>20,.0f}")

    print(f"{'of which tracking':<20}{1000 * tracking:>14.1f}")

    def ratio(above: str, below: str, *, wall: bool = False) -> float:
        pairs = zip(seconds[above], seconds[below], strict=True)
        return statistics.median(a[wall] / b[wall] for a, b in pairs)

    of_program = statistics.median(one.cpu for one in seconds["program"])
    figures = {
        "of_plain_trl": ratio("plain TRL", "program"),
        "of_bare_loop": ratio("bare loop", "program"),
        "tracking_cost": tracking / (of_program - tracking),
        "trl_of_bare_loop": ratio("bare loop", "plain TRL"),
        "tokens_per_cpu_s": tokens_per_step / of_program,
        "of_plain_trl_wall": ratio("plain TRL", "program", wall=True),
        "of_bare_loop_wall": ratio("bare loop", "program", wall=True),
    }
    print()
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
