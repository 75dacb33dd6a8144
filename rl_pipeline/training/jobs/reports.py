"""What people are told of a training job: when it is asked for, and when it is over."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.job import Attempt, Job, State
from rl_pipeline.training.jobs.rows import attempts_of, job_of


@dataclass(frozen=True, slots=True)
class JobReport:
    """The end of a training job, or how far it is. What is not known (yet) is None."""

    job_id: str
    state: State
    explanation: str
    attempts: int
    duration_hours: float
    """Of all attempts together."""
    samples: int | None
    """Trajectories in its dataset."""
    final_reward: float | None
    improvement_percent: float | None
    """Of the measure by which the algorithm is judged, against the base model."""
    measure: str | None
    validation: str
    deployment: str
    cost_usd: float | None
    """Estimated, of all attempts that told theirs."""
    checkpoint: str | None

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)

    def text(self) -> str:
        """For people."""
        unknown = "not known"
        gain = unknown if self.improvement_percent is None else f"{self.improvement_percent:+.1f}% ({self.measure})"
        return "\n".join(
            (
                f"Training job ID: {self.job_id}",
                f"State: {self.state}, {self.explanation}",
                f"Attempts: {self.attempts}",
                f"Duration: {self.duration_hours:.2f}h",
                f"Samples used: {unknown if self.samples is None else f'{self.samples:,}'}",
                f"Final reward: {unknown if self.final_reward is None else f'{self.final_reward:.3f}'}",
                f"Improvement: {gain}",
                f"Validation: {self.validation}",
                f"Deployment: {self.deployment}",
                f"Cost: {unknown if self.cost_usd is None else f'${self.cost_usd:.2f}'}",
                f"Checkpoint: {self.checkpoint or 'none'}",
            )
        )


def job_report(warehouse: Warehouse, job_id: str) -> JobReport:
    """The report of a job. Raises `NoSuchJob`."""
    job = job_of(warehouse, job_id)
    attempts = attempts_of(warehouse, [job_id])[job_id]
    results: list[Mapping[str, Any]] = [json.loads(attempt.result) for attempt in attempts]
    final = results[-1] if attempts and attempts[-1].outcome == "completed" else {}
    costs = [cost for result in results if (cost := (result.get("resource_usage") or {}).get("cost_usd")) is not None]
    return JobReport(
        job_id=job_id,
        state=job.state,
        explanation=job.explanation,
        attempts=len(attempts),
        duration_hours=_hours(attempts),
        samples=_samples(warehouse, job_id),
        final_reward=_final_reward(final),
        improvement_percent=_improvement(final),
        measure=final.get("measure"),
        validation="not yet" if job.state == "completed" else "none",
        deployment=_deployment(job),
        cost_usd=sum(costs) if costs else None,
        checkpoint=(final.get("artifacts") or {}).get("final_checkpoint"),
    )


def announcement(job: str, samples: int) -> str:
    """What a superior is told when a training is asked for; `job` is its number, as #47, or its id."""
    return f"Initiating RL training job {job} with {_rounded(samples)} samples"


def next_job_number(warehouse: Warehouse) -> int:
    """The number of the job that is accepted next, counted from 1."""
    return int(warehouse.query("SELECT uniqExact(job_id) AS count FROM training_jobs")["count"][0]) + 1


def _hours(attempts: Sequence[Attempt]) -> float:
    spans = ((one.ended_at - one.started_at) for one in attempts if one.ended_at and one.started_at)
    return sum(span.total_seconds() for span in spans) / 3600


def _samples(warehouse: Warehouse, job_id: str) -> int | None:
    found = warehouse.query(
        "SELECT trajectories FROM datasets FINAL WHERE job_id = {job:String} ORDER BY revision DESC LIMIT 1",
        {"job": job_id},
    )
    return None if found.is_empty() else int(found["trajectories"][0])


def _final_reward(result: Mapping[str, Any]) -> float | None:
    evaluated = (result.get("evaluation_results") or {}).get("holdout_reward")
    reward = evaluated if evaluated is not None else (result.get("final") or {}).get("reward_mean")
    return None if reward is None else float(reward)


def _improvement(result: Mapping[str, Any]) -> float | None:
    """The gain in percent of what the base model reached; none where it reached nothing."""
    gain, measure = result.get("improvement"), result.get("measure")
    base = _measured(result.get("base") or {}, measure)
    return None if gain is None or not base else 100.0 * float(gain) / abs(base)


def _measured(measures: Mapping[str, Any], measure: str | None) -> float | None:
    # A program measures success by sampling and greedily; the sampled one counts.
    value = measures.get("success_sampled" if measure == "success" else measure or "")
    return None if value is None else float(value)


def _deployment(job: Job) -> str:
    if job.shadow:
        return "never, it is a shadow job"
    return "not yet" if job.state == "completed" else "aborted" if job.is_final else "none"


def _rounded(samples: int) -> str:
    return f"{samples // 1000}K" if samples % 1000 == 0 else f"{samples:,}"
