"""What went wrong, as RFC 9457 has it: a status, a code that does not change, and what to do next."""

import logging
from collections.abc import Mapping
from typing import cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rl_pipeline.contracts import ContractError
from rl_pipeline.deployment.desk import RecordPending
from rl_pipeline.deployment.phases import TransitionRefused
from rl_pipeline.deployment.record import NothingDeployed, RecordBusy
from rl_pipeline.deployment.traffic import TrafficRefused, TrafficUnavailable
from rl_pipeline.errors import PipelineError
from rl_pipeline.memory.embedding import EmbeddingsMissing
from rl_pipeline.memory.telling import NothingToRemember, UserErased
from rl_pipeline.memory.vectors import UsearchMissing
from rl_pipeline.observability.traces import NoTrace
from rl_pipeline.redaction.redactor import SensitiveKey
from rl_pipeline.rewards.integrator import InvalidTaskResult
from rl_pipeline.service.dagster_api import DagsterUnavailable
from rl_pipeline.service.keys import KeyExpired, KeyRefused, ScopeMissing
from rl_pipeline.service.limits import BodyTooLarge, TooManyRequests
from rl_pipeline.service.routers.parameters import NoSuchDate
from rl_pipeline.service.training_desk import JobIdTaken, JobOver
from rl_pipeline.stores.agent_memories import MemoriesUnavailable
from rl_pipeline.stores.objects import ObjectsUnavailable
from rl_pipeline.stores.stream import PublishRefused, StreamDenied, StreamMissing, StreamUnavailable
from rl_pipeline.stores.warehouse import WarehouseError, WarehouseUnavailable
from rl_pipeline.training.jobs.rows import NoSuchJob
from rl_pipeline.training.spoken import UnclearSentence

MEDIA_TYPE = "application/problem+json"
_RETRY_SECONDS = "5"
_MALFORMED = frozenset({"not_json", "not_utf8", "byte_order_mark"})

_log = logging.getLogger(__name__)


class Problem(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:rl-pipeline:problem:no_such_job",
                    "title": "There is no such job",
                    "status": 404,
                    "code": "no_such_job",
                    "detail": "there is no training job job-1",
                    "next_step": "POST /training/start asks for one, and GET /jobs lists them",
                }
            ]
        }
    )

    type: str = Field(description="urn:rl-pipeline:problem: and the code.")
    title: str = Field(description="The kind of problem; the same for each of its code's status.")
    status: int
    code: str = Field(description="For programs; it does not change.")
    detail: str = Field(description="What happened, for people.")
    next_step: str = Field(description="What to do about it.")


_KNOWN: Mapping[type[PipelineError], tuple[int, str, str]] = {
    KeyRefused: (401, "key_refused", "A key is needed"),
    KeyExpired: (401, "key_expired", "The key has expired"),
    ScopeMissing: (403, "scope_missing", "The key may not do this"),
    NoSuchJob: (404, "no_such_job", "There is no such job"),
    NoTrace: (404, "no_such_trajectory", "There is no such trajectory"),
    NothingDeployed: (404, "nothing_deployed", "Nothing is deployed"),
    JobIdTaken: (409, "job_id_taken", "The id belongs to another request"),
    JobOver: (409, "job_over", "The job has ended"),
    TransitionRefused: (409, "not_now", "The state of the deployment does not allow it"),
    TrafficRefused: (409, "traffic_refused", "A gateway refuses it"),
    RecordBusy: (409, "record_busy", "Others change the deployment"),
    BodyTooLarge: (413, "too_large", "The request is too large"),
    NothingToRemember: (422, "nothing_to_remember", "The memory says nothing"),
    UserErased: (409, "user_erased", "The user was erased"),
    UnclearSentence: (422, "unclear_sentence", "The sentence is not understood"),
    NoSuchDate: (422, "invalid_parameter", "A parameter is wrong"),
    InvalidTaskResult: (422, "invalid_task_result", "The result gives no reward"),
    PublishRefused: (422, "publish_refused", "The stream does not take the message"),
    SensitiveKey: (422, "sensitive_key", "The name of a field is sensitive"),
    TooManyRequests: (429, "too_many_requests", "Too many requests"),
    StreamUnavailable: (503, "nats_unavailable", "NATS does not answer"),
    StreamMissing: (503, "stream_missing", "A stream is missing"),
    StreamDenied: (503, "nats_denied", "The service may not do this at NATS"),
    WarehouseUnavailable: (503, "warehouse_unavailable", "The warehouse does not answer"),
    WarehouseError: (503, "warehouse_refused", "The warehouse refuses"),
    MemoriesUnavailable: (503, "memories_unavailable", "The store of memories does not answer"),
    EmbeddingsMissing: (503, "embeddings_missing", "The service cannot embed"),
    UsearchMissing: (503, "usearch_missing", "The service cannot search so many embeddings"),
    ObjectsUnavailable: (503, "objects_unavailable", "The object store does not answer"),
    TrafficUnavailable: (503, "gateway_unavailable", "No gateway answers"),
    RecordPending: (503, "record_pending", "The model is neither fenced nor recorded as out"),
    DagsterUnavailable: (503, "dagster_unavailable", "Dagster does not answer"),
}
_BY_STATUS = {
    404: ("no_such_route", "There is no such route", "GET /openapi.json lists the routes"),
    405: ("method_not_allowed", "The route does not take this method", "GET /openapi.json lists the methods"),
}


def problem_of(error: PipelineError) -> Problem:
    """The problem that an error of the core is."""
    if isinstance(error, ContractError):
        status = 413 if error.limit == "max_bytes" else 400 if error.limit in _MALFORMED else 422
        return _problem(status, error.limit, "The message breaks its contract", str(error), error.advice)
    known = next((_KNOWN[kind] for kind in type(error).__mro__ if kind in _KNOWN), None)
    if known is None:
        return _problem(500, "internal", "The service failed", type(error).__name__, "see the service's log")
    detail, _, next_step = str(error).rpartition(": ")
    return _problem(*known, detail or next_step, next_step)


def answer_with(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The problem as a response."""
    more = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    if problem.status == 503:
        more["Retry-After"] = _RETRY_SECONDS
    content = problem.model_dump_json()
    return Response(content, problem.status, {**more, **(headers or {})}, media_type=MEDIA_TYPE)


def handle_problems(app: FastAPI) -> None:
    """Answer every failure of the app with a problem."""
    app.add_exception_handler(PipelineError, _pipeline_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


async def _pipeline_error(request: Request, error: Exception) -> Response:
    problem = problem_of(cast("PipelineError", error))
    headers = {"Retry-After": f"{max(1, round(error.retry_after))}"} if isinstance(error, TooManyRequests) else {}
    if problem.status >= 500:
        _log.error("%s %s: %s: %s", request.method, _route(request), problem.code, error)
    return answer_with(problem, headers)


async def _invalid(_: Request, error: Exception) -> Response:
    first = cast("RequestValidationError", error).errors()[0]
    where = ".".join(str(part) for part in first["loc"][:2])
    return answer_with(_problem(422, "invalid_parameter", "A parameter is wrong", f"{where} is wrong", first["msg"]))


async def _http(_: Request, error: Exception) -> Response:
    refused = cast("HTTPException", error)
    code, title, next_step = _BY_STATUS.get(refused.status_code, ("http", refused.detail, "correct the request"))
    problem = _problem(refused.status_code, code, title, refused.detail, next_step)
    return answer_with(problem, refused.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    # The text of an unexpected error may hold what the caller sent: the kind and the place are enough to find it.
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "nowhere"
    _log.error("%s %s failed: %s at %s", request.method, _route(request), type(error).__name__, place)
    return answer_with(_problem(500, "internal", "The service failed", "an unexpected error", "see the service's log"))


def _problem(status: int, code: str, title: str, detail: str, next_step: str) -> Problem:
    return Problem(
        type=f"urn:rl-pipeline:problem:{code}",
        title=title,
        status=status,
        code=code,
        detail=detail,
        next_step=next_step,
    )


def _route(request: Request) -> str:
    """The route as it is written: what stands in its place in a request is the caller's."""
    return str(getattr(request.scope.get("route"), "path", "?"))
