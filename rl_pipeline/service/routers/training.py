"""Training jobs and models, as the quick reference and the trainer's profile call them."""

import asyncio
from typing import Annotated, Any
from uuid import UUID, uuid4, uuid5

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from rl_pipeline.contracts.registry import CONTRACT_NAMES
from rl_pipeline.contracts.strict_json import parse_strict_json
from rl_pipeline.contracts.training_status import JobStatus
from rl_pipeline.deployment.catalogue import CataloguedModel, catalogue
from rl_pipeline.service.access import Running, answered, needs, raw, read_body, takes
from rl_pipeline.service.answers import (
    CancelAnswer,
    HealthAnswer,
    JobAnswer,
    JobsAnswer,
    ModelAnswer,
    ModelsAnswer,
    StartAnswer,
)
from rl_pipeline.service.keys import ApiKey
from rl_pipeline.service.routers.bodies import Why
from rl_pipeline.service.routers.parameters import JobId, Limit, Since, moment
from rl_pipeline.training.asked import REQUEST_FIELDS, asked_request

router = APIRouter(tags=["training"])

_IDS = UUID("0a0b8f7e-54f5-4b0c-9a5f-0f5d2b8c9a21")
_START_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A whole request, all but training_config of which may be left out; or a training_config alone.",
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/TrainingStart"},
                        {
                            "allOf": [
                                {"$ref": "#/components/schemas/TrainingConfig"},
                                {"not": {"anyOf": [{"required": [name]} for name in sorted(REQUEST_FIELDS)]}},
                            ]
                        },
                    ]
                }
            }
        },
    }
}


@router.get(
    "/health", response_model=HealthAnswer, responses={503: {"model": HealthAnswer}}, dependencies=[needs("read")]
)
async def health(service: Running) -> Response:
    """How the service is, and each server behind it: 503 when it cannot serve, `degraded` when it can in part."""
    found = await service.health.health()
    return answered(found, 503 if found.status == "unavailable" else 200)


@router.post("/training/start", status_code=202, response_model=StartAnswer, openapi_extra=_START_BODY)
async def start_training(
    request: Request,
    service: Running,
    key: Annotated[ApiKey, needs("train")],
    idempotency_key: Annotated[
        str | None, Header(max_length=256, description="The same key asks for the same job, where no id is given.")
    ] = None,
) -> Response:
    """Ask for a training. With NATS away the request is kept, and starts when it is back: `fell_back` tells so."""
    tree = parse_strict_json(await request.body(), names=CONTRACT_NAMES)
    job = uuid5(_IDS, f"{key.name}/{idempotency_key}") if idempotency_key else uuid4()
    asked = asked_request(tree, job_id=f"manual-{job}", requester=key.name, now=service.now())
    return answered(await service.training.start(asked), 202)


@router.get("/training/{job_id}/status", response_model=JobAnswer, dependencies=[needs("read")])
async def training_status(job_id: JobId, service: Running) -> Response:
    """Where a job stands, with its attempts, its progress and what came of it."""
    return raw(await service.training.status(job_id))


@router.post(
    "/training/{job_id}/cancel",
    status_code=202,
    response_model=CancelAnswer,
    openapi_extra=takes(Why, required=False),
)
async def cancel_training(
    job_id: JobId, request: Request, service: Running, key: Annotated[ApiKey, needs("train")]
) -> Response:
    """End a job, wherever it stands; one that runs saves its state and stops at the end of its step."""
    why = await read_body(request, Why)
    return answered(await service.training.cancel(job_id, key.name, why.reason), 202)


@router.get("/jobs", response_model=JobsAnswer, dependencies=[needs("read")])
async def list_jobs(
    service: Running,
    status: JobStatus | None = None,
    since: Since = None,
    limit: Limit = 50,
) -> Response:
    """Accepted jobs, those that changed last first."""
    found = await service.training.jobs(status=status, since=moment(since, service.now()), limit=limit)
    return answered(JobsAnswer(jobs=found, count=len(found)))


@router.get("/models", response_model=ModelsAnswer, dependencies=[needs("read")])
async def list_models(
    service: Running,
    deployed_since: Since = None,
    limit: Limit = 50,
) -> Response:
    """Models that were released, and the first one, with what became of each."""
    since = moment(deployed_since, service.now())
    found = await asyncio.to_thread(
        lambda: catalogue(service.connections.warehouse(), deployed_since=since, limit=limit)
    )
    return answered(ModelsAnswer(models=[_model(each) for each in found], count=len(found)))


def _model(found: CataloguedModel) -> ModelAnswer:
    return ModelAnswer(
        model_id=found.model.model_id,
        state=found.state,
        explanation=found.explanation,
        training_job_id=found.model.training_job_id,
        base_model=found.model.base_model,
        checkpoint_path=found.model.checkpoint_path,
        released_at=found.released_at,
        deployed_at=found.deployed_at,
        last_event=found.last_event,
        last_event_at=found.last_event_at,
        traffic_percentage=100 * found.share,
        serving=found.is_serving,
        validation=dict(found.validation),
    )
