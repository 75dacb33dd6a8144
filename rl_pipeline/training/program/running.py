"""One attempt from its plan to its result: which trainer, what is measured before and after, what is left behind."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, set_seed

from rl_pipeline.training.launching.exits import Exit
from rl_pipeline.training.plans.deepspeed_config import join_processes
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.dataset import manifest_of
from rl_pipeline.training.program.models import BaseModelMissing, deliver, load_tokenizer
from rl_pipeline.training.program.prompts import PROMPTS
from rl_pipeline.training.program.reporting import Reporter, peak_memory_gb
from rl_pipeline.training.program.saving import Resumable
from rl_pipeline.training.program.session import Session
from rl_pipeline.training.program.stopping import StopRequest
from rl_pipeline.training.work_directory import WorkDirectory

Measures = dict[str, float]

# What a job is judged by: the first of these that was measured, its name in the result, and which way is up.
_MEASURES = (
    ("success_sampled", "success", 1),
    ("preference_accuracy", "preference_accuracy", 1),
    ("holdout_loss", "holdout_loss", -1),
    ("reward_mean", "reward", 1),
)
_CURVES = ("loss", "reward_mean", "reward_std", "episode_turns", "policy_entropy", "kl_divergence", "learning_rate")


@dataclass(frozen=True)
class Course:
    """An algorithm: its trainer, and what is measured of it on the holdout. All processes call both."""

    trainer: Callable[[Session], Resumable]
    measure: Callable[[Session, Resumable], Measures]


class EngineMissing(RuntimeError):
    """The plan asks for DeepSpeed and something else ran: its results would be taken for what they are not."""


def run(
    plan: TrainingPlan, work: WorkDirectory, *, rank: int, world_size: int, reporter: Reporter, stop: StopRequest
) -> Exit:
    """Train as planned; leave the model in `final` and `result.json`. Raises whatever goes wrong."""
    session = _open_session(plan, work, rank=rank, world_size=world_size, reporter=reporter, stop=stop)
    course = _course_of(session)
    trainer = course.trainer(session)
    base = _BaseMeasures(session, trainer, course.measure)
    trainer.add_callback(base)
    trainer.train_from(trainer.newest_state())
    _check_engine(session, trainer)
    if stop.made:
        return Exit.SAVED
    reporter.phase("evaluation")
    final = {**(course.measure(session, trainer) if plan.evaluation.enabled else {}), **trainer.own_measures}
    reporter.measured("final", final)
    result = _result_of(session, trainer, base.measures, final)
    reporter.phase("saving")
    trainer.before_delivery()
    deliver(session, trainer, work.final, {"step": trainer.state.global_step, "metrics": final})
    if session.writes:
        _write(work.result_file, result)
    return Exit.DONE


def _open_session(
    plan: TrainingPlan, work: WorkDirectory, *, rank: int, world_size: int, reporter: Reporter, stop: StopRequest
) -> Session:
    distribution = plan.distribution
    device = torch.device(distribution.device)
    if distribution.deepspeed:
        # ZeRO-3 asks for it before there is a trainer that could do it.
        with _left_out("mlflow"):  # DeepSpeed's autotuner would import it, for nothing
            join_processes(distribution.device)
    base = work.base if work.base.is_symlink() or work.base.exists() else Path(plan.base_model)
    if not (base / "config.json").exists():
        raise BaseModelMissing(f"There is no model in {base}: put the base model there, or name its directory.")
    set_seed(plan.seed)
    return Session(
        plan=plan,
        work=work,
        rank=rank,
        world_size=world_size,
        device=device,
        base=base,
        dataset_hash=manifest_of(work.dataset).hash,
        tokenizer=load_tokenizer(base),
        reporter=reporter,
        stop=stop,
    )


@contextmanager
def _left_out(module: str) -> Iterator[None]:
    """While something else is imported that would import this one as well, for seconds, if it found it."""
    present = sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment]  # Python's way to say that there is none
    try:
        yield
    finally:
        del sys.modules[module]
        if present is not None:
            sys.modules[module] = present


def _course_of(session: Session) -> Course:
    """Imports no trainer but the one it takes: each costs seconds."""
    algorithm = session.plan.algorithm
    if algorithm == "sft":
        from rl_pipeline.training.program.imitation import holdout_loss, imitation_trainer

        return Course(imitation_trainer, _with_success(holdout_loss))
    if algorithm == "dpo":
        from rl_pipeline.training.program.preference import preference_accuracy, preference_trainer

        return Course(preference_trainer, _with_success(preference_accuracy))
    from rl_pipeline.training.program.online import online_measures, online_trainer_of

    return Course(online_trainer_of, _with_success(online_measures))


def _with_success(measure: Callable[[Session, Resumable], Measures]) -> Callable[[Session, Resumable], Measures]:
    """The algorithm's own measure and, where the holdout can be played, how often the model succeeds."""
    return lambda session, trainer: {**_success(session, trainer), **measure(session, trainer)}


def _success(session: Session, trainer: Resumable) -> Measures:
    if not (session.work.dataset / PROMPTS).exists():
        return {}
    from rl_pipeline.training.program.online import success

    return success(session, trainer)


class _BaseMeasures(TrainerCallback):
    """Measures the base model before the first step, once for all attempts: a later one starts from a state."""

    def __init__(self, session: Session, trainer: Resumable, measure: Callable[[Session, Resumable], Measures]) -> None:
        self._session = session
        self._trainer = trainer
        self._measure = measure
        self.measures: Measures = {}

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The engine stands, and nothing is trained yet."""
        session = self._session
        file = session.work.base_measures
        known = json.loads(file.read_text()) if file.exists() else {}
        if known.get("dataset") == session.dataset_hash:
            self.measures = known["measures"]
        elif self._trainer.state.global_step == 0 and session.plan.evaluation.enabled:
            session.reporter.phase("base_evaluation")
            self.measures = self._measure(session, self._trainer)
            session.reporter.measured("base", self.measures)
            if session.writes:
                _write(file, {"dataset": session.dataset_hash, "measures": self.measures})
        session.reporter.phase("training")


def _check_engine(session: Session, trainer: Resumable) -> None:
    engine = type(trainer.model_wrapped).__name__
    if session.plan.distribution.deepspeed and engine != "DeepSpeedEngine":
        raise EngineMissing(f"The plan asks for DeepSpeed, and {engine} ran: report this with the program's log.")


def _result_of(session: Session, trainer: Resumable, base: Measures, final: Measures) -> dict[str, Any]:
    engine: Any = trainer.model_wrapped
    deepspeed = session.plan.distribution.deepspeed
    measured = next((each for each in _MEASURES if each[0] in base and each[0] in final), None)
    return {
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "seconds": trainer.seconds,
        "tokens": trainer.count_tokens(),
        "measure": measured[1] if measured else None,
        "base": base,
        "final": final,
        "improvement": (final[measured[0]] - base[measured[0]]) * measured[2] if measured else None,
        "curves": _curves(trainer.state.log_history),
        "peak_memory_gb": peak_memory_gb(),
        "processes": trainer.args.world_size,
        "zero_stage": engine.zero_optimization_stage() if deepspeed else None,
        "engine": type(engine).__name__,
        "optimizer": type(engine.basic_optimizer).__name__ if deepspeed else None,
        "notes": trainer.notes,
    }


def _curves(history: Sequence[Mapping[str, float]]) -> dict[str, list[tuple[float, float]]]:
    """The figures by step, those of earlier attempts up to the state that was resumed from included."""
    points = {name: [(row["step"], row[name]) for row in history if name in row] for name in (*_CURVES, "entropy")}
    points["policy_entropy"] = points["policy_entropy"] or points.pop("entropy")
    return {name: values for name, values in points.items() if values}


def _write(file: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    unfinished = file.with_suffix(".partial")
    unfinished.write_text(json.dumps(content, indent=1))
    unfinished.replace(file)
