"""`/api/v1`: training and rewards, as the learning architecture calls them."""

import asyncio
from dataclasses import asdict
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from rl_pipeline.rewards.history import reward_history
from rl_pipeline.rewards.integrator import RewardSignal
from rl_pipeline.service.access import Running, answered, needs, read_body, takes
from rl_pipeline.service.answers import LoopAnswer, RewardAnswer, RewardsAnswer, StartAnswer, StopAnswer
from rl_pipeline.service.keys import ApiKey
from rl_pipeline.service.routers.bodies import LoopStart, TaskResult, Why, given
from rl_pipeline.service.routers.parameters import Limit
from rl_pipeline.training.asked import loop_request

router = APIRouter(prefix="/api/v1", tags=["learning"])


@router.post(
    "/training/start",
    status_code=202,
    response_model=StartAnswer,
    openapi_extra=takes(LoopStart, required=False),
)
async def start_loop(request: Request, service: Running, key: Annotated[ApiKey, needs("train")]) -> Response:
    """Start a training on what was collected, with these knobs."""
    knobs = given(await read_body(request, LoopStart))
    asked = loop_request(knobs, job_id=f"manual-{uuid4()}", requester=key.name, now=service.now())
    return answered(await service.training.start(asked), 202)


@router.post("/training/stop", status_code=202, response_model=StopAnswer, openapi_extra=takes(Why, required=False))
async def stop_loop(request: Request, service: Running, key: Annotated[ApiKey, needs("train")]) -> Response:
    """Stop what trains now; what waits goes on waiting, and then begins."""
    why = await read_body(request, Why)
    return answered(await service.training.stop(key.name, why.reason), 202)


@router.get("/training/status", response_model=LoopAnswer, dependencies=[needs("read")])
async def loop_status(service: Running) -> Response:
    """What trains, with its metrics, what waits, and what ended last."""
    return answered(await service.training.loop())


@router.post(
    "/rewards/calculate", response_model=RewardsAnswer, openapi_extra=takes(TaskResult), dependencies=[needs("collect")]
)
async def calculate_reward(request: Request, service: Running) -> Response:
    """Score a task that has ended, divide the reward among its agents, and keep it; the same report is kept once."""
    body = await read_body(request, TaskResult)
    integrator = await asyncio.to_thread(service.integrator)
    signals = await integrator.process_task_completion(body.task_id, body.result)
    return answered(_rewards(signals))


@router.get("/rewards/history", response_model=RewardsAnswer, dependencies=[needs("read")])
async def list_rewards(
    service: Running,
    agent_id: Annotated[str | None, Query(min_length=1, max_length=256, description="Else of every agent.")] = None,
    limit: Limit = 50,
) -> Response:
    """What agents earned, the newest first."""
    found = await asyncio.to_thread(
        lambda: reward_history(service.connections.warehouse(), agent_id=agent_id, limit=limit)
    )
    return answered(_rewards(found))


def _rewards(signals: list[RewardSignal]) -> RewardsAnswer:
    rewards = [RewardAnswer(**asdict(signal)) for signal in signals]
    return RewardsAnswer(rewards=rewards, count=len(rewards))
