"""Which validated checkpoint is let into service, by which plan: the same for the pipeline itself and for whoever asks.

Nobody gets past validation: what it refused stays out, and what it left open waits for a person.
"""

from dataclasses import dataclass
from datetime import datetime

from rl_pipeline.deployment.releases import Release, Releases, RolloutPlan
from rl_pipeline.deployment.state import EvidenceRule, Strategy
from rl_pipeline.deployment.strategy import CAUTIOUS_SHARE, SAMPLES, Choice, choose, ramp
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.lease import Leases
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.validation.storing import Candidate, StoredReport, candidate_of, report_of
from rl_pipeline.validation.verdict import contract_results

_BOLDER: tuple[Strategy, ...] = ("canary", "blue_green", "immediate")
"""From the most careful on."""


class NotAdmitted(PipelineError):
    """A checkpoint that is not let into service; the text says why."""


@dataclass(frozen=True, slots=True)
class RolloutTerms:
    """How this deployment lets models in."""

    initial_traffic: float = 0.10
    cautious_traffic: float = CAUTIOUS_SHARE
    """A canary's first share where it is hardly better."""
    ramp_hours: float = 4.0
    step_samples: tuple[int, int, int] = SAMPLES
    bake_hours: float = 24.0
    rule: EvidenceRule = "evidence"
    always_canary: bool = False
    """However much better a model is."""
    needs_approval: bool = False
    endpoint: str | None = None
    """Where every model is served by its id; else checkpoints are."""
    splits: bool = True
    """Whether models can share the traffic; a backend that is asked directly is switched from one to the next."""


def admit(
    tables: Warehouse,
    leases: Leases,
    job_id: str,
    terms: RolloutTerms,
    *,
    now: datetime,
    strategy: Strategy | None = None,
    model_id: str | None = None,
) -> Release:
    """Release the checkpoint of a training job if validation lets it; again, it is the same release.

    One that waits and was validated again has the plan of the new report, or is refused by it.
    A `strategy` that is asked for may be more careful than the one that the benchmarks allow, never bolder. Raises
    `NotAdmitted`, `NothingToValidate` and `NotValidated`, and what `Releases.release` raises.
    """
    candidate, stored = candidate_of(tables, job_id), report_of(tables, job_id)
    choice = _choice(stored, terms)
    refusal = _refusal(candidate, stored, choice)
    if refusal:
        waiting = Releases(tables).of_job(job_id)
        if waiting is not None and waiting.state == "waiting":
            Releases(tables).refuse(waiting, refusal, now)
        raise NotAdmitted(f"{job_id} is not released, the model in service stays: {refusal}")
    return Releases(tables).release(
        leases,
        training_job_id=candidate.job_id,
        base_model=candidate.base_model,
        checkpoint_path=candidate.checkpoint_path,
        manifest_sha256=candidate.manifest_sha256,
        plan=_plan(_careful(choice, strategy, terms), terms, stored.control),
        validation=contract_results(stored.report).model_dump(mode="json", exclude_none=True),
        needs_approval=terms.needs_approval or stored.report.decision == "ask_a_person",
        shadow=candidate.shadow,
        now=now,
        endpoint=terms.endpoint,
        model_id=model_id,
    )


def _choice(stored: StoredReport, terms: RolloutTerms) -> Choice:
    found = stored.report.improvement
    if found is None:
        return Choice("canary", terms.initial_traffic, "there was nothing to compare with")
    return choose(found.points, found.interval[1], terms.initial_traffic, terms.cautious_traffic)


def _refusal(candidate: Candidate, stored: StoredReport, choice: Choice) -> str:
    """Why the model is not released; nothing where it is."""
    if candidate.shadow:
        return "it is of a shadow job, which is validated and never deployed"
    if stored.manifest_sha256 != candidate.manifest_sha256:
        return "another checkpoint was validated than the one that is stored: materialize validation_reports again"
    if stored.report.decision == "refuse":
        return "; ".join(stored.report.reasons)
    return choice.reason if choice.strategy == "abort" else ""


def _careful(choice: Choice, asked: Strategy | None, terms: RolloutTerms) -> Choice:
    """The choice, or the more careful one that was asked for."""
    if not terms.splits:
        return Choice("immediate", 1.0, f"{choice.reason}; a single backend cannot split traffic")
    if asked is None and terms.always_canary:
        asked = "canary"
    if asked is None or choice.strategy in (asked, "abort"):
        return choice
    if asked not in _BOLDER or _BOLDER.index(asked) > _BOLDER.index(choice.strategy):
        raise NotAdmitted(f"a rollout by {asked} is bolder than its benchmarks allow ({choice.reason}): ask for canary")
    return Choice(asked, terms.initial_traffic, f"{choice.reason}; {asked} was asked for")


def _plan(choice: Choice, terms: RolloutTerms, measured_against: str) -> RolloutPlan:
    if choice.strategy == "abort":
        raise NotAdmitted(choice.reason)
    return RolloutPlan(
        strategy=choice.strategy,
        steps=ramp(choice.strategy, choice.initial, terms.ramp_hours, terms.step_samples),
        bake_seconds=terms.bake_hours * 3600,
        rule=terms.rule,
        explanation=choice.reason,
        measured_against=measured_against,
    )
