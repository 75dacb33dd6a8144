"""What agents and people hand in: trajectories and feedback; and one trajectory, read back as it is stored."""

import asyncio
import logging
from typing import Annotated, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from rl_pipeline.contracts import CLAIMED_LIMITS, Feedback, Trajectory, parse_message
from rl_pipeline.observability.traces import Trace, trace_of
from rl_pipeline.service.access import Running, answered, needs, takes
from rl_pipeline.service.answers import StoredAnswer, TraceAnswer
from rl_pipeline.service.keys import ApiKey
from rl_pipeline.service.routers.parameters import TrajectoryId

router = APIRouter(tags=["experience"])

_log = logging.getLogger(__name__)

TRAJECTORIES_PATH = "/trajectories"


@router.post(
    "/feedback",
    status_code=202,
    response_model=StoredAnswer,
    openapi_extra=takes(Feedback),
)
async def give_feedback(request: Request, service: Running, key: Annotated[ApiKey, needs("feedback")]) -> Response:
    """Hand in what somebody thought of a trajectory. It is stored when this answers; the same id is stored once."""
    feedback = cast("Feedback", parse_message("agent.rl.feedback.v1", await request.body()))
    stored = await service.publishing.publish(feedback)
    _log.info("%s handed in feedback", key.name, extra={"trajectory_id": feedback.trajectory_id})
    return answered(stored, 202)


@router.post(
    TRAJECTORIES_PATH,
    status_code=202,
    response_model=StoredAnswer,
    openapi_extra=takes(Trajectory),
)
async def hand_in_trajectory(request: Request, service: Running, key: Annotated[ApiKey, needs("collect")]) -> Response:
    """Hand in what an agent did; it is redacted before it is published. The same id is stored once."""
    data = await request.body()
    trajectory = await asyncio.to_thread(parse_message, "agent.rl.trajectory.v1", data, CLAIMED_LIMITS)
    stored = await service.publishing.publish(trajectory)
    _log.info("%s handed it in", key.name, extra={"trajectory_id": stored.id})
    return answered(stored, 202)


@router.get("/trajectories/{trajectory_id}", response_model=TraceAnswer, dependencies=[needs("traces")])
async def show_trajectory(trajectory_id: TrajectoryId, service: Running) -> Response:
    """One trajectory as it is stored, which is redacted, with what it earned and what learnt from it."""
    trace = await asyncio.to_thread(lambda: trace_of(service.connections.warehouse(), trajectory_id))
    return answered(_answer(trajectory_id, trace))


def _answer(trajectory_id: str, trace: Trace) -> TraceAnswer:
    return TraceAnswer(
        trajectory_id=trajectory_id,
        document=trace.document,
        reward=trace.reward,
        feedback=list(trace.feedback),
        datasets=list(trace.datasets),
        checkpoints=list(trace.checkpoints),
        redactions=trace.redactions,
    )
