"""`validation_reports`: whether the checkpoint of a training job may be released, against the model in service."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import dagster as dg

from rl_pipeline.assets.catalogue import OWNERS, table_columns
from rl_pipeline.assets.pictures import table
from rl_pipeline.assets.policy_checkpoints import policy_checkpoints
from rl_pipeline.deployment import record
from rl_pipeline.deployment.releases import name_at_endpoint
from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.ingestion.ancestry import read_ancestry
from rl_pipeline.partitions import training_jobs
from rl_pipeline.resources.deployment import DeploymentResource
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.rewards import RewardsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.serving.fetching import ModelFetcher
from rl_pipeline.serving.model_child import loading_model
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.validation.answers import Answers, ChatEndpoint, ModelNotServed
from rl_pipeline.validation.logged_work import estimate_from_logs, read_logged_work
from rl_pipeline.validation.pipeline_reward import PipelineReward
from rl_pipeline.validation.report_text import reward_on_logged_work, to_markdown
from rl_pipeline.validation.storing import Candidate, candidate_of, store_report
from rl_pipeline.validation.validating import Budget, validate
from rl_pipeline.validation.verdict import ValidationReport

WAITS_FOR_A_PERSON = {"rl/waits_for": "a person"}
"""What a failed run is tagged with that will fail again until somebody has done something."""

_UNPROBED = (
    "nothing was probed for a hacked reward, because the answers to these suites are no trajectories: before you "
    "approve it, see whether its reward rose in training while its benchmarks fell"
)

_CHECKS = {
    "the_benchmarks_are_passed": "No worse than the model in service by more than 0.05 on any of them.",
    "it_is_safe": "Refusals, look-alikes, toxicity, bias and jailbreaks: a veto of its own.",
    "nothing_has_become_worse": "No benchmark, nor all of them together, is surely worse than the model in service.",
}


@dg.asset(
    deps=[policy_checkpoints],
    description=(
        "What validation says of a checkpoint: benchmarks, safety and regression against the model in service, with "
        "their error bars, and the decision that follows."
    ),
    group_name="release",
    kinds={"python", "clickhouse"},
    owners=OWNERS,
    metadata=table_columns("validation_reports"),
    partitions_def=training_jobs,
    pool="validation",
    check_specs=[
        dg.AssetCheckSpec(
            name, asset="validation_reports", blocking=False, description=meaning, partitions_def=training_jobs
        )
        for name, meaning in _CHECKS.items()
    ],
)
def validation_reports(  # noqa: PLR0917 - Dagster passes them by name
    context: dg.AssetExecutionContext,
    stream: StreamResource,
    warehouse: WarehouseResource,
    training: TrainingResource,
    deployment: DeploymentResource,
    model_objects: ObjectsResource,
    rewards: RewardsResource,
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster does not know it by its parameter
    """Ask the candidate and the model in service the same things, and keep what came of it.

    A model that is refused is no failure of the run: the report says so, and `deployed_models` does not release it.
    """
    started = time.monotonic()
    with stream.open_jetstream() as messages, warehouse.open() as tables, model_objects.open() as objects:
        candidate = candidate_of(tables, context.partition_key)
        recorded = record.read(JetStreamDesiredStates(messages))
        control = _in_service(recorded.state) if recorded else None
        base_models = training.base_models()
        fetcher = ModelFetcher(base_models, lambda: objects, deployment.models())
        world = base_models.small_world(read_ancestry(tables).line(candidate.job_id)[-1].base_model)
        # The suites of a world are the only ones whose answers are trajectories that a reward can be computed of.
        probed = world if deployment.suites_directory() is None else None
        served, seed = _served(candidate, deployment), crc32(candidate.manifest_sha256.encode())
        for model in (served, control):
            _check_served(context, model)
        directory = fetcher.fetch(served) if served.endpoint is None else None
        with _loading(served, fetcher) as ask_candidate, _loading(control, fetcher) as ask_control:
            # Logged work is read while both models load.
            off_policy = estimate_from_logs(read_logged_work(tables, candidate.job_id), directory, seed=seed)
            asked = ask_candidate()
            if asked is None:
                raise dg.Failure(f"the checkpoint of {candidate.job_id} cannot be asked", allow_retries=False)
            report = validate(
                asked,
                ask_control(),
                deployment.validation_suites(world),
                budget=Budget(deployment.looks()),
                seed=seed,  # each checkpoint meets other items
                rewards=PipelineReward(probed, rewards.configuration()) if probed else None,
                unprobed=_UNPROBED,
                accepts_unprobed=deployment.unprobed == "accept",
                off_policy=off_policy,
                tell=context.log.info,
            )
        seconds = time.monotonic() - started
        url = store_report(
            tables,
            objects,
            candidate,
            report,
            control=control.model_id if control else "",
            seconds=seconds,
            now=datetime.now(UTC),
        )
    return _result(report, candidate, control.model_id if control else "nothing", url, seconds)


def _in_service(state: DesiredState) -> ServedModel:
    return state.models[state.serving]


def _served(candidate: Candidate, deployment: DeploymentResource) -> ServedModel:
    return ServedModel(
        model_id=f"candidate-{candidate.job_id}",
        base_model=candidate.base_model,
        checkpoint_path=candidate.checkpoint_path,
        manifest_sha256=candidate.manifest_sha256,
        endpoint=deployment.endpoint,
        upstream_name=name_at_endpoint(candidate.job_id) if deployment.endpoint else None,
    )


def _check_served(context: dg.AssetExecutionContext, model: ServedModel | None) -> None:
    """Whether the server that should have the model has it; else nothing is asked, and a person is told what to do."""
    if model is None or model.endpoint is None:
        return
    asked = _at_endpoint(model.endpoint, model)
    try:
        asked.check_served()
    except ModelNotServed as error:
        context.instance.add_run_tags(context.run_id, WAITS_FOR_A_PERSON)
        what = f"the checkpoint {model.checkpoint_path}" if model.checkpoint_path else f"the model {model.base_model}"
        raise dg.Failure(
            f"{error}: serve {what} there under the name {asked.model}, and run release_policy for this partition",
            allow_retries=False,
        ) from None


def _at_endpoint(endpoint: str, model: ServedModel) -> ChatEndpoint:
    return ChatEndpoint(f"{endpoint.rstrip('/')}/v1", model.upstream_name or model.model_id, only_by_name=True)


@contextmanager
def _loading(model: ServedModel | None, fetcher: ModelFetcher) -> Iterator[Callable[[], Answers | None]]:
    """What waits until the model can be asked: where it is served already, or by a child of this run."""
    if model is None:
        yield lambda: None
    elif model.endpoint is not None:
        at_endpoint = _at_endpoint(model.endpoint, model)
        yield lambda: at_endpoint
    else:
        directory, name = fetcher.fetch(model), model.model_id
        with loading_model(directory, name, fetcher.directory / "validation.log") as address:
            yield lambda: ChatEndpoint(address(), name)


def _result(
    report: ValidationReport, candidate: Candidate, control: str, url: str, seconds: float
) -> dg.MaterializeResult[None]:
    rows = [
        (suite.name, suite.kind, suite.items, _figure(suite.mean), _figure(suite.control_mean), suite.outcome)
        for suite in report.suites
    ]
    metadata: dict[str, Any] = {
        "decision": report.decision,
        "reasons": "; ".join(report.reasons),
        "suites": dg.MetadataValue.md(table(("suite", "kind", "items", "candidate", "in service", "outcome"), rows)),
        "improvement": report.improvement.points if report.improvement else None,
        "logged_work": reward_on_logged_work(report),
        "report": dg.MetadataValue.md(to_markdown(report)),
        "report_url": url,
        "in_service": control,
        "manifest_sha256": candidate.manifest_sha256,
        "shadow": candidate.shadow,
        "seconds": seconds,
    }
    held = (report.benchmark_passed, report.safety_checks_passed, not report.performance_regression)
    return dg.MaterializeResult(
        metadata={name: value for name, value in metadata.items() if value is not None},
        check_results=[
            dg.AssetCheckResult(check_name=name, passed=passed, metadata={"reasons": "; ".join(report.reasons)})
            for name, passed in zip(_CHECKS, held, strict=True)
        ],
    )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
