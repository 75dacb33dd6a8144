"""Where a training job keeps what: the one place that knows the layout of its work directory. Nothing is made here."""

from dataclasses import dataclass
from pathlib import Path

from rl_pipeline.training.launching.exits import LOG_FILE, PLAN_FILE, PROGRESS_FILE, RESULT_FILE


@dataclass(frozen=True)
class WorkDirectory:
    """The work directory of a job, as one of its attempts sees it."""

    root: Path
    attempt: int

    @property
    def dataset(self) -> Path:
        """The dataset's files with their manifest."""
        return self.root / "dataset"

    @property
    def base(self) -> Path:
        """The base model, unless the plan names a directory elsewhere."""
        return self.root / "base"

    @property
    def checkpoints(self) -> Path:
        """The states to resume from, which all attempts share."""
        return self.root / "checkpoints"

    @property
    def final(self) -> Path:
        """The model that the job delivers."""
        return self.root / "final"

    @property
    def reward_model(self) -> Path:
        """The reward model, learnt once for all attempts."""
        return self.root / "reward_model"

    @property
    def base_measures(self) -> Path:
        """What was measured before the first step: a later attempt does not start from the base."""
        return self.root / "base_measures.json"

    @property
    def attempt_directory(self) -> Path:
        """What belongs to this attempt alone."""
        return self.root / f"attempt-{self.attempt}"

    @property
    def plan_file(self) -> Path:
        """The attempt's plan."""
        return self.attempt_directory / PLAN_FILE

    @property
    def log_file(self) -> Path:
        """What the program printed."""
        return self.attempt_directory / LOG_FILE

    @property
    def progress_file(self) -> Path:
        """One JSON object per line, as the training goes on."""
        return self.attempt_directory / PROGRESS_FILE

    @property
    def result_file(self) -> Path:
        """What came of it; there only after success."""
        return self.attempt_directory / RESULT_FILE
