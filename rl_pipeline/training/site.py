"""The machine's side of a training: where it works, on what, and what an hour costs."""

from dataclasses import dataclass, field
from pathlib import Path

from rl_pipeline.environments.worlds import WorldDefinitions
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.work_directory import WorkDirectory


@dataclass(frozen=True)
class TrainingSite:
    """What this deployment trains with. `work` must outlive the machine if its trainings shall."""

    work: Path
    models: Path
    """Base models by name, made or fetched once."""
    processes: int | None = None
    hostfile: Path | None = None
    memory_limit_gb: float | None = None
    stall_seconds: float = 600.0
    gpu_hour_usd: float = 0.0
    cpu_hour_usd: float = 0.0
    worlds: WorldDefinitions = field(default_factory=WorldDefinitions)
    """In which tasks can be played, beside crafting."""
    seed: int = 0
    """Of every training here."""

    def directory(self, job_id: str, attempt: int) -> WorkDirectory:
        """Where an attempt at a job works."""
        return WorkDirectory(self.work / job_id, attempt)

    @property
    def operators(self) -> Path:
        """Where DeepSpeed's compiled operators are kept."""
        return self.work / ".operators"

    def cost_usd(self, plan: TrainingPlan, seconds: float) -> float:
        """What so many seconds of the plan cost, estimated by the hour of a GPU or a core."""
        price = self.gpu_hour_usd if plan.distribution.device == "cuda" else self.cpu_hour_usd
        return round(plan.distribution.processes * seconds / 3600 * price, 6)
