"""What every trainer here has in common beyond transformers' own: states that are whole or not there, resumed from the
newest whole one; an end at the end of a step; a report of how it goes.

All processes write their share of a state into one staging directory; rank 0 commits it. The directory must be one that
all nodes see.
"""

import logging
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from rl_pipeline.training.checkpoints import storage
from rl_pipeline.training.checkpoints.manifest import MANIFEST, CheckpointCorrupt, Manifest, parse_manifest
from rl_pipeline.training.program.session import Session
from rl_pipeline.training.program.stopping import check_weights, heed
from rl_pipeline.training.program.taking_over import Layout, layout_of, note_on, take_over_weights
from rl_pipeline.training.program.templates import ChatTemplate

_log = logging.getLogger(__name__)


class Resumable(Trainer):
    """Stands in front of a trainer of transformers or TRL; `attach` it to its session before it trains."""

    session: Session

    def attach(self, session: Session) -> None:
        """From now on states are saved, stops heeded and progress reported as the session wants it."""
        self.session = session
        self._seconds_before = 0.0
        self._tokens = 0
        self._local_tokens = torch.zeros((), dtype=torch.long)
        self._latest: dict[str, float] = {}
        self._owes_save = False
        self._has_weights_alone = False
        self.notes: list[str] = []
        for note in ChatTemplate(session.tokenizer).notes:
            self.note(note)
        self.report_passes(cast("nn.Module", self.model))
        self.remove_callback(PrinterCallback)
        self.add_callback(_AtStepEnd(self))

    def report_passes(self, model: nn.Module) -> None:
        """From now on every pass of the model says that something goes on."""
        model.register_forward_pre_hook(lambda *_: self.session.reporter.heartbeat())

    @property
    def own_measures(self) -> dict[str, float]:
        """What is known of this training beside what is measured before and after it."""
        return {}

    @property
    def seconds(self) -> float:
        """Time spent by all attempts, each from its start; what one did after its last state is not in it."""
        return self._seconds_before + time.monotonic() - self.session.began

    def at_boundary(self) -> bool:
        """Whether the state after this step can be resumed from; a save that is due waits until it can."""
        return True

    def at_step_end(self, control: TrainerControl) -> None:
        """Stop if any process was asked to, and save what could not be saved earlier."""
        stops = heed(self, self.session.stop)
        if self.at_boundary() and (stops or self._owes_save):
            control.should_save = True
            control.should_training_stop = control.should_training_stop or stops

    def before_delivery(self) -> None:
        """Take off what is needed for training alone."""

    def newest_state(self) -> Path | None:
        """The state to go on from: the newest whole one that this dataset led to. All processes call this."""
        found: list[str | None] = [None]
        if self.session.writes:
            with self.session.reporter.while_bytes_move(self.session.work.checkpoints):
                state = storage.newest_verified(self.session.work.checkpoints)
            if state is not None and _noted(state)["dataset"] != self.session.dataset_hash:
                # Another dataset, another training: its states would only be taken for ours later on.
                storage.discard(self.session.work.checkpoints)
                state = None
            found = [str(state) if state else None]
        if self.args.world_size > 1:
            torch.distributed.broadcast_object_list(found)
        return Path(found[0]) if found[0] else None

    def train_from(self, state: Path | None) -> None:
        """Train to the end, or until the session is asked to stop.

        Of a state that was saved by other processes than these, the weights alone are taken.
        """
        if state is not None:
            noted, ours = _noted(state), layout_of(self.session.plan)
            self._tokens, self._seconds_before = noted["tokens"], noted["seconds"]
            self.notes = list(dict.fromkeys([*noted.get("notes", []), *self.notes]))
            saved = noted.get("layout", ours)
            if saved != ours:
                self._take_over(state, saved)
        self.session.stop.waits = True
        try:
            self.train(resume_from_checkpoint=str(state) if state else None)
        finally:
            self.session.stop.waits = False

    def _take_over(self, state: Path, saved: Layout) -> None:
        note = note_on(_manifest(state).meta.step, saved, layout_of(self.session.plan))
        self.note(note)
        with self.session.reporter.while_bytes_move(state):
            take_over_weights(cast("nn.Module", self.model), state, saved, reads=self.session.writes)
        self._has_weights_alone = True

    def note(self, note: str) -> None:
        """Tell people of it: in the log, in what is reported, and in the attempt's result."""
        _log.warning("%s", note)
        self.session.reporter.note(note)
        self.notes.append(note)

    def count_tokens(self) -> int:
        """Tokens trained on so far, by all processes and attempts. All processes call this."""
        counted = self.accelerator.reduce(self._local_tokens.to(self.args.device), reduction="sum")
        self._tokens += int(counted)
        self._local_tokens.zero_()
        return self._tokens

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *more: Any) -> torch.Tensor:
        """The trainer's own, with the tokens counted."""
        if "attention_mask" in inputs:
            self._local_tokens += inputs["attention_mask"].sum().to(self._local_tokens.device)
        return super().training_step(model, inputs, *more)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The trainer's own, with the tokens of all processes; the loss is only in the logs of training."""
        if "loss" in logs:
            logs["tokens"] = self.count_tokens()
        super().log(logs, start_time)
        if "loss" in logs:
            self._latest = {name: value for name, value in logs.items() if isinstance(value, int | float)}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Not with a state of DeepSpeed, which holds all weights already."""
        if not (_internal_call and self.is_deepspeed_enabled):
            super().save_model(output_dir, _internal_call)

    def create_model_card(self, *arguments: Any, **more: Any) -> None:
        """The model card is written from the plan and the dataset, not by the trainer."""

    def _run_epoch(self, *arguments: Any, **more: Any) -> None:
        """Nothing for a training that was resumed after its last step: the trainer would take one more."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*arguments, **more)  # type: ignore[no-untyped-call]

    def _get_output_dir(self, trial: Any) -> str:  # noqa: ARG002  the Trainer's signature
        return str(storage.staging_of(self._target))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self._owes_save = not self.at_boundary()
        if self._owes_save:
            return
        check_weights(self)
        self.count_tokens()
        session, target = self.session, self._target
        session.reporter.phase("saving")
        if session.writes:
            storage.begin(target)
        self.accelerator.wait_for_everyone()
        try:
            with session.reporter.while_bytes_move(storage.staging_of(target)):
                with storage.storage_failures(target):
                    super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()
                if session.writes:
                    self._commit(target)
        except BaseException:
            if session.writes:
                storage.discard(storage.staging_of(target))
            raise
        # Nobody may end before the state is in place: the launcher ends all others with the first.
        self.accelerator.wait_for_everyone()
        session.reporter.phase("training")

    def _commit(self, target: Path) -> None:
        """Make a state of what all processes have written."""
        staging = storage.staging_of(target)
        written = staging / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        (written / "training_args.bin").unlink(missing_ok=True)  # a pickle that nobody reads
        storage.commit(written, target, self._meta())
        storage.discard(staging)
        storage.prune(target.parent, self.session.plan.checkpoints.max_checkpoints, self._best_state())

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if not self._has_weights_alone:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        state = None if self._has_weights_alone else resume_from_checkpoint
        prepared = super()._prepare_for_training(max_steps, train_dataloader, state)  # type: ignore[no-untyped-call]
        if self._has_weights_alone:
            self._advance_schedule()
        return prepared

    def _advance_schedule(self) -> None:
        """Have the learning rate go on at the state's step."""
        scheduler: Any = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        scheduler.last_epoch = self.state.global_step - 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it expects a step of the optimizer first
            scheduler.step()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._scale_learning_rate(self.args.learning_rate / _noted(Path(checkpoint))["learning_rate"])

    def _scale_learning_rate(self, factor: float) -> None:
        """The plan of this attempt decides, not that of the attempt which saved the state."""
        if factor == 1.0:
            return
        scheduler: Any = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        optimizer: Any = self.optimizer
        scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]
        scheduler._last_lr = [rate * factor for rate in scheduler._last_lr]  # noqa: SLF001  what it reports until it moves
        for group in optimizer.param_groups:
            group["lr"] *= factor
            if "initial_lr" in group:
                group["initial_lr"] *= factor

    @property
    def _target(self) -> Path:
        return storage.state_directory(self.session.work.checkpoints, self.state.global_step)

    def _meta(self) -> dict[str, Any]:
        plan = self.session.plan
        return {
            "job_id": plan.job_id,
            "attempt": plan.attempt,
            "algorithm": plan.algorithm,
            "step": self.state.global_step,
            "created": datetime.now(UTC),
            "dataset": self.session.dataset_hash,
            "layout": layout_of(plan),
            "notes": self.notes,
            "learning_rate": self.args.learning_rate,
            "tokens": self._tokens,
            "seconds": self.seconds,
            "metrics": self._latest,
        }

    def _best_state(self) -> Path | None:
        """The state with the highest reward, where there is one: a loss does not tell which model is better."""
        rewarded: dict[Path, float] = {}
        for state in storage.states(self.session.work.checkpoints):
            try:
                reward = _manifest(state).meta.metrics.get("reward_mean")
                if reward is not None:
                    rewarded[state] = reward
            except CheckpointCorrupt as corrupt:
                # Nobody can go on from it, and it would take the place of one that can be kept.
                _log.warning("%s", corrupt)
                storage.discard(state)
        return max(rewarded, key=lambda state: rewarded[state], default=None)


class _AtStepEnd(TrainerCallback):
    """Heeds stops on all processes and reports on rank 0."""

    def __init__(self, trainer: Resumable) -> None:
        self._trainer = trainer

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        self._trainer.at_step_end(control)
        self._trainer.session.reporter.step(state.global_step, state.max_steps, state.epoch, args.num_train_epochs)
        return control

    def on_log(self, *_: Any, **event: Any) -> None:
        if "loss" in event["logs"]:
            self._trainer.session.reporter.log(event["logs"])


def _noted(state: Path) -> dict[str, Any]:
    """What `_meta` added to what every checkpoint says of itself."""
    return _manifest(state).meta.model_extra or {}


def _manifest(state: Path) -> Manifest:
    """Raises `CheckpointCorrupt`."""
    file = state / MANIFEST
    if not file.exists():
        raise CheckpointCorrupt(state, f"{MANIFEST} is missing")
    return parse_manifest(file.read_bytes(), state)
