"""Tasks of inspect-ai as suites: each look runs the task in a child against the model's server, and reads its log.

inspect-ai takes 18 seconds and 356 MB to load and is no dependency: where it is not installed, the suite fails closed.
It can only reach servers, so both models have to be `ChatEndpoint`s. Which tasks are run says `suites/inspect_file.py`.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_pipeline.errors import PipelineError
from rl_pipeline.validation.answers import Answers, ChatEndpoint
from rl_pipeline.validation.suite import Item, Kind, Suite

_PROVIDER = "validated"
_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""How inspect-ai writes correct, incorrect, partly correct and no answer."""


class InspectFailed(PipelineError):
    """A task of inspect-ai that gave no scores."""


@dataclass(frozen=True)
class InspectTask:
    """A task, as `inspect eval` names it; the answer to an item is its score in the task's log."""

    task: str
    scorer: str | None = None
    """Which of the task's scores counts, where it has several."""
    arguments: Mapping[str, str] | None = None
    python: str = sys.executable
    timeout_seconds: float = 3600.0
    max_retries: int = 3
    """Of each request; inspect-ai itself would try for ever."""
    directory: Path | None = None
    """Where files of tasks are looked for; else where the pipeline runs."""

    def __call__(self, answers: Answers, items: Sequence[Item], seeds: Sequence[int]) -> list[str]:
        """Run the task on exactly these samples."""
        if not isinstance(answers, ChatEndpoint):
            raise InspectFailed("inspect-ai can only reach a server: give the model as a ChatEndpoint")
        with tempfile.TemporaryDirectory(prefix="rl_pipeline_inspect_") as directory:
            self._run(answers, [item.id for item in items], directory, seeds[0])
            logs = list(Path(directory).glob("*.json"))
            if len(logs) != 1:
                raise InspectFailed(f"inspect-ai left {len(logs)} logs instead of one: run the task by hand")
            scores = read_log(logs[0].read_bytes(), self.scorer)
        if missing := [item.id for item in items if item.id not in scores]:
            raise InspectFailed(f"sample {missing[0]!r} has no score: does the task have it?")
        return [str(scores[item.id]) for item in items]

    def _run(self, endpoint: ChatEndpoint, samples: Sequence[str], directory: str, seed: int) -> None:
        command = [
            *(self.python, "-m", "inspect_ai", "eval", self.task),
            *("--model", f"openai-api/{_PROVIDER}/{endpoint.model}", "--model-base-url", endpoint.url),
            *("--sample-id", ",".join(samples), "--seed", str(seed), "--max-retries", str(self.max_retries)),
            *("--log-dir", directory, "--log-format", "json", "--display", "none"),
        ]
        for name, value in (self.arguments or {}).items():
            command += ["-T", f"{name}={value}"]
        environment = {
            "HOME": directory,
            "PATH": "/usr/bin:/bin",
            f"{_PROVIDER.upper()}_API_KEY": endpoint.token or "none",
        }
        try:
            ended = subprocess.run(  # noqa: S603 - the task is the operator's own
                command,
                env=environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self.timeout_seconds,
                check=False,
            )
        except OSError as error:
            raise InspectFailed(
                f"{self.python} cannot be run ({error.strerror}): name a Python that has inspect-ai"
            ) from None
        except subprocess.TimeoutExpired:
            raise InspectFailed(f"{self.task} took longer than {self.timeout_seconds:.0f} s") from None
        if ended.returncode != 0:
            raise InspectFailed(self._complaint(ended.stderr or ended.stdout))

    def _complaint(self, said: str) -> str:
        if "No module named inspect_ai" in said:
            return (
                f"inspect-ai is not installed for {self.python}: run `pip install 'rl-pipeline[inspect]'` in an "
                "environment of its own, and name its python in the file of tasks"
            )
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return f"{self.task} failed: {lines[-1][:300] if lines else 'without a word'}"


def inspect_suite(
    name: str, kind: Kind, task: InspectTask, samples: Sequence[str], *, minimum: int, floor: float
) -> Suite:
    """A task as a suite over these sample ids, which inspect-ai counts from 1 where the task gives none."""
    items = [Item(sample, sample) for sample in samples]
    return Suite(name, kind, items, lambda _, answer: float(answer), minimum, floor, task)


def read_log(content: bytes, scorer: str | None = None) -> dict[str, float]:
    """The score of each sample in a JSON log, from 0 to 1; the mean where it was run several times."""
    try:
        log = json.loads(content)
        if log["status"] != "success":
            said = " ".join(str((log.get("error") or {}).get("message", "without a word")).split())
            raise InspectFailed(f"the task ended with {log['status']!r}: {said[:300]}")
        scores: dict[str, list[float]] = {}
        for sample in log["samples"]:
            scores.setdefault(str(sample["id"]), []).append(_score(sample, scorer))
    except (ValueError, LookupError, TypeError) as error:
        raise InspectFailed(f"the log is not in the format of inspect-ai: {type(error).__name__} {error}") from None
    return {name: sum(values) / len(values) for name, values in scores.items()}


def _score(sample: Mapping[str, Any], scorer: str | None) -> float:
    if sample.get("error"):
        raise InspectFailed(f"sample {sample['id']!r} ended with an error: read the log")
    scores = sample["scores"]
    if scorer is None and len(scores) != 1:
        raise InspectFailed(f"sample {sample['id']!r} has the scores {', '.join(scores) or 'of nobody'}: name one")
    value = scores[scorer or next(iter(scores))]["value"]
    if isinstance(value, str) and value in _LETTERS:
        return _LETTERS[value]
    if isinstance(value, bool | int | float) and 0 <= value <= 1:
        return float(value)
    raise InspectFailed(f"sample {sample['id']!r} has a score that is not within 0 and 1: {value!r}")
