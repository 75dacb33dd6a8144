"""From requests to jobs: which are accepted, which only repeat one, and which are refused.

A request is settled after its effect is stored, so whatever dies in between, it comes again, and its effect is there:

- A request whose job exists with the same content only repeats it. Nothing starts twice; that it is queued is said
  again, because the sensor may have died before it could say so the first time.
- A request whose job exists with another content changes nothing: the first one counts. A dead letter says so.
- What is no valid request, or asks for a dataset or a plan that cannot be, becomes a dead letter, and a `failed` status
  if it names a job that does not exist. The status of a job that exists is never touched by a message that was refused.
- A request that names no model is left for later while nobody can tell which one is in service. Every look is handed
  all of these again, so that one of them can be cancelled; see `cancelling`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import cast

from rl_pipeline.contracts import (
    Algorithm,
    ContractError,
    Priority,
    TrainingRequest,
    TriggerReason,
    parse_message,
    serialize,
)
from rl_pipeline.curation.policy import CurationPolicy, InvalidFilter, criteria_of
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.stream import Delivery, StoredMessage, Stream
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.job import Job
from rl_pipeline.training.jobs.refusals import TRAINING_STREAM, OpenRedactor, dead_letter, named_job
from rl_pipeline.training.jobs.rows import REQUEST_SUBJECT, carry_out, find_job
from rl_pipeline.training.jobs.statuses import announce, queued, refused
from rl_pipeline.training.plans.planning import UnplannableRequest, check_plannable
from rl_pipeline.training.plans.presets import source_names, source_preset

REQUESTS_CONSUMER = "training_requests"

PRIORITIES: Mapping[TriggerReason, Priority] = MappingProxyType(
    {"performance_degradation": "urgent", "manual": "high", "threshold_reached": "normal", "scheduled": "normal"}
)
"""The priority of a request that names none, by its reason."""

_BATCH = 100
_MOST_BATCHES = 10
BEFORE_TRAINING = ("accepted", "importing", "waiting", "ready")
"""The states of a job whose next attempt has not been started."""
# In the stored request, where nobody has asked for a model by its name.
_SUCCESSOR_OF = "successor_of"


class StartUnknown(PipelineError):
    """Which model is in service cannot be told now."""


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """From where a training starts."""

    base_model: str
    """Its address, or its name."""
    model_id: str | None = None
    """Of the model in service whose checkpoint this is."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a request that leaves it open is trained with."""

    algorithm: Algorithm
    base_model: Callable[[], StartingPoint]
    """Asked for a request that names no model, and for no other. Raises `StartUnknown`."""


@dataclass(frozen=True, slots=True)
class LeftRequest:
    """A request that will come again."""

    request: TrainingRequest
    why: str


@dataclass(frozen=True, slots=True)
class TakenIn:
    """What became of the requests that were waiting, by their jobs; a refused one by its sequence in the stream."""

    accepted: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    refused: tuple[int, ...] = ()
    left: tuple[LeftRequest, ...] = ()


def accept_requests(
    messages: Stream,
    warehouse: Warehouse,
    *,
    defaults: Defaults,
    trajectories: str,
    redactor: OpenRedactor,
    now: datetime,
) -> TakenIn:
    """Make jobs of all requests that wait. `trajectories` is the stream that ingest reads.

    Ask the warehouse something before: a request that is fetched in vain comes again ever later.
    """
    intake = _Intake(messages, warehouse, defaults, trajectories, redactor, now)
    for _ in range(_MOST_BATCHES):
        deliveries = messages.fetch(TRAINING_STREAM, REQUESTS_CONSUMER, _BATCH, 0)
        for delivery in deliveries:
            intake.take(delivery)
        if len(deliveries) < _BATCH:
            break
    intake.hand_back()
    return TakenIn(tuple(intake.accepted), tuple(intake.repeated), tuple(intake.refused), tuple(intake.left))


def filled_in(request: TrainingRequest, defaults: Defaults) -> TrainingRequest:
    """The request with what it left open: a later change of the settings does not change the job.

    The source that it names with `preset` has an algorithm of its own. Raises `UnknownSource` and `StartUnknown`.
    """
    named, algorithm = request.training_config.base_model, _algorithm_of(request, defaults.algorithm)
    start = StartingPoint(named) if named else defaults.base_model()
    whole = _completed(request, algorithm, start.base_model)
    if start.model_id is None:
        return whole
    return whole.model_copy(
        update={"metadata": whole.metadata.model_copy(update={_SUCCESSOR_OF: start.model_id})},
    )


def successor_of(request: TrainingRequest) -> str | None:
    """The model that a job goes on from because it was in service when its request, which named none, was accepted."""
    model_id = (request.metadata.model_extra or {}).get(_SUCCESSOR_OF)
    return str(model_id) if model_id else None


def _completed(request: TrainingRequest, algorithm: Algorithm, base_model: str) -> TrainingRequest:
    config = request.training_config
    chosen = {"algorithm": config.algorithm or algorithm, "base_model": config.base_model or base_model}
    priority = request.priority if "priority" in request.model_fields_set else PRIORITIES[request.trigger_reason]
    return request.model_copy(
        update={"training_config": config.model_copy(update=chosen), "priority": priority},
    )


def is_repetition(request: TrainingRequest, accepted: TrainingRequest) -> bool:
    """Whether a request asks for what was accepted, or asked for, under its id: all but its time and its notes is the
    same."""
    config = accepted.training_config
    again, before = (
        _completed(each, cast("Algorithm", config.algorithm), cast("str", config.base_model))
        for each in (request, accepted)
    )
    return _content(again) == _content(before)


@dataclass(slots=True)
class _Intake:
    """What is needed to take requests in, and what became of them."""

    messages: Stream
    warehouse: Warehouse
    defaults: Defaults
    trajectories: str
    redactor: OpenRedactor
    now: datetime
    accepted: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    left: list[LeftRequest] = field(default_factory=list)
    _handed_back: list[Delivery] = field(default_factory=list)

    def take(self, delivery: Delivery) -> None:
        """Store what becomes of a request, then settle it."""
        try:
            request = _read(delivery.message.data, self.trajectories)
            try:
                self._accept(request)
            except StartUnknown as unknown:
                self.left.append(LeftRequest(request, str(unknown)))
                self._handed_back.append(delivery)
                return
        except ContractError as error:
            self._refuse(delivery.message, error)
            delivery.term()
        else:
            delivery.ack()

    def hand_back(self) -> None:
        """Let those that were left come again, at the next look: at this one nothing more is fetched."""
        for delivery in self._handed_back:
            delivery.nak()

    def _accept(self, request: TrainingRequest) -> None:
        job = find_job(self.warehouse, request.training_job_id)
        if job is None:
            drains = request.training_config.dataset.source == "nats_stream"
            through = self.messages.state(self.trajectories).last_sequence if drains else 0
            # Before it is asked what is in service: what is refused has nothing to wait for.
            _check(request, _algorithm_of(request, self.defaults.algorithm))
            whole = filled_in(request, self.defaults)
            # What is filled in and written out makes it longer.
            parse_message(REQUEST_SUBJECT, serialize(whole))
            job = Job.accepted(whole, through_sequence=through, now=self.now)
            carry_out(self.messages, self.warehouse, [job, queued(job.job_id, 1, self.now)])
            self.accepted.append(job.job_id)
            return
        if not is_repetition(request, job.request):
            advice = "another request was accepted under this id, and that one counts: ask under an id of its own"
            raise ContractError("job_id_taken", "training_job_id", "string", advice)
        if job.state in BEFORE_TRAINING:
            announce(self.messages, queued(job.job_id, 1, self.now))
        self.repeated.append(job.job_id)

    def _refuse(self, message: StoredMessage, error: ContractError) -> None:
        dead_letter(self.messages, message, error, self.redactor, self.now)
        # Whoever asked is told, if it can be told for which job without speaking for another.
        job_id = named_job(message.data)
        if job_id is not None and find_job(self.warehouse, job_id) is None:
            announce(self.messages, refused(job_id, message.sequence, str(error), self.now))
        self.refused.append(message.sequence)


def check_request(request: TrainingRequest, trajectories: str, algorithm: Algorithm) -> None:
    """Raise `ContractError` where a request would be refused, for whoever can still tell the one who asks.

    `algorithm` is that of a request that names none. Whether its model is there is found out when it is trained.
    """
    _check_names(request, trajectories)
    _check(request, _algorithm_of(request, algorithm))
    parse_message(REQUEST_SUBJECT, serialize(request))


def _read(data: bytes, trajectories: str) -> TrainingRequest:
    request = cast("TrainingRequest", parse_message(REQUEST_SUBJECT, data))
    _check_names(request, trajectories)
    return request


def _check_names(request: TrainingRequest, trajectories: str) -> None:
    dataset = request.training_config.dataset
    if dataset.stream_name not in (None, trajectories):
        path = "training_config.dataset.stream_name"
        raise ContractError("unknown_stream", path, "string", f"name {trajectories}, or leave it out")
    if dataset.source in ("s3", "local"):
        _check_place(dataset.source, dataset.path)
    source = _source_of(request)
    if source and source not in source_names():
        advice = f"name one of {', '.join(source_names())}, or leave it out"
        raise ContractError("unknown_preset", "training_config.preset", "string", advice)


def _source_of(request: TrainingRequest) -> str | None:
    """The source whose defaults a request wants, if it names one."""
    named = (request.training_config.model_extra or {}).get("preset")
    return str(named) if named else None


def _algorithm_of(request: TrainingRequest, default: Algorithm) -> Algorithm:
    """The algorithm that a request names, or that of the source that it names, or the default."""
    source = _source_of(request)
    return request.training_config.algorithm or (source_preset(source).algorithm if source else default)


def _check_place(source: str, place: str | None) -> None:
    path = "training_config.dataset.path"
    if place is None:
        raise ContractError("missing", path, "absent", "say where the files are")
    if (source == "s3") != place.startswith("s3://") or (source == "local" and "://" in place):
        advice = "write s3://bucket/prefix for the source s3, and a path below the directory of imports for local"
        raise ContractError("other_source", path, "string", advice)


def _check(request: TrainingRequest, algorithm: Algorithm) -> None:
    """Raise `ContractError` where no dataset can be made of what a request says, or no plan."""
    try:
        criteria_of(
            request,
            job_id=request.training_job_id,
            accepted_at=request.timestamp,
            algorithm=algorithm,
            watermark=0,
            policy=CurationPolicy(),
        )
    except InvalidFilter as invalid:
        raise ContractError("invalid_filter", "training_config.dataset.filter", "object", str(invalid)) from None
    try:
        check_plannable(request, algorithm)
    except UnplannableRequest as unplannable:
        raise ContractError("unplannable", "training_config", "object", str(unplannable)) from None


def _content(request: TrainingRequest) -> TrainingRequest:
    metadata = request.metadata.model_copy(update={"notes": None, _SUCCESSOR_OF: None})
    return request.model_copy(update={"timestamp": None, "metadata": metadata})
