"""Models in service: how they stand, and what a person can order. Whose order it was is recorded."""

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Request
from starlette.responses import Response

from rl_pipeline.deployment import record
from rl_pipeline.deployment.commands import Commands
from rl_pipeline.deployment.desk import RecordPending
from rl_pipeline.deployment.record import NothingDeployed
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.service.access import Running, answered, needs, read_body, takes
from rl_pipeline.service.answers import DeploymentAnswer, FencedAnswer, RolloutAnswer
from rl_pipeline.service.keys import ApiKey
from rl_pipeline.service.routers.bodies import Order, Promotion, Why
from rl_pipeline.service.service import Service

router = APIRouter(prefix="/deployments", tags=["deployments"])

_log = logging.getLogger(__name__)


@router.get("/current", response_model=DeploymentAnswer, dependencies=[needs("read")])
async def deployment(service: Running) -> Response:
    """Who serves what share, and where the rollout stands."""

    def read() -> DesiredState:
        with service.configuration.open_desk() as desk:
            recorded = record.read(desk.states)
        if recorded is None:
            raise NothingDeployed("nothing is deployed yet: name a model with `rl-pipeline deployment create`")
        return recorded.state

    return answered(_answer(await asyncio.to_thread(read)))


@router.post("/approve", response_model=DeploymentAnswer, openapi_extra=takes(Why, required=False))
async def approve(request: Request, service: Running, key: Annotated[ApiKey, needs("deploy")]) -> Response:
    """Let the candidate in that waits for it."""
    reason = (await read_body(request, Why)).reason or "approved by a person"
    return await _ordered(service, key, lambda commands: commands.approve(reason))


@router.post("/abort", response_model=DeploymentAnswer, openapi_extra=takes(Why, required=False))
async def abort(request: Request, service: Running, key: Annotated[ApiKey, needs("deploy")]) -> Response:
    """Send the candidate away that waits for an approval."""
    reason = (await read_body(request, Why)).reason or "a person does not want it"
    return await _ordered(service, key, lambda commands: commands.abort(reason))


@router.post("/freeze", response_model=DeploymentAnswer, openapi_extra=takes(Why, required=False))
async def freeze(request: Request, service: Running, key: Annotated[ApiKey, needs("deploy")]) -> Response:
    """Let nothing advance; rollbacks go on."""
    reason = (await read_body(request, Why)).reason or "frozen by a person"
    return await _ordered(service, key, lambda commands: commands.freeze(reason))


@router.post("/unfreeze", response_model=DeploymentAnswer, openapi_extra=takes(Why, required=False))
async def unfreeze(request: Request, service: Running, key: Annotated[ApiKey, needs("deploy")]) -> Response:
    """Let rollouts advance again."""
    reason = (await read_body(request, Why)).reason or "released by a person"
    return await _ordered(service, key, lambda commands: commands.unfreeze(reason))


@router.post("/promote", response_model=DeploymentAnswer, openapi_extra=takes(Promotion))
async def promote(request: Request, service: Running, key: Annotated[ApiKey, needs("deploy")]) -> Response:
    """Give the candidate all of the traffic, or end its bake, whatever the evidence says."""
    order = await read_body(request, Promotion)
    reason = order.reason or "promoted by a person"
    return await _ordered(service, key, lambda commands: commands.promote(reason, model_id=order.model_id))


@router.post(
    "/roll-back",
    response_model=DeploymentAnswer,
    responses={202: {"model": FencedAnswer}},
    openapi_extra=takes(Order, required=False),
)
async def roll_back(request: Request, service: Running, key: Annotated[ApiKey, needs("deploy")]) -> Response:
    """Take the candidate out at once, or the model in service if it is named. It is never raised again.

    The gateways are told first. With NATS away they hold the fence, and the record follows: 202.
    """
    order = await read_body(request, Order)
    reason = order.reason or "taken back by a person"
    try:
        return await _ordered(service, key, lambda commands: commands.roll_back(reason, model_id=order.model_id))
    except RecordPending as pending:
        if not pending.is_fenced:
            raise
        return answered(FencedAnswer(recorded=False, message=str(pending)), 202)


async def _ordered(service: Service, key: ApiKey, order: Callable[[Commands], DesiredState]) -> Response:
    def carry_out() -> DesiredState:
        with service.configuration.open_desk() as desk:
            return order(Commands(desk, f"{key.name} by the service", service.now()))

    state = await asyncio.to_thread(carry_out)
    about = {"generation": state.generation, "model_id": state.change.model_id}
    if state.rollout:
        about["deployment_id"] = state.rollout.deployment_id
    _log.info("%s ordered it: %s", key.name, state.change.event, extra=about)
    return answered(_answer(state))


def _answer(state: DesiredState) -> DeploymentAnswer:
    rollout, change = state.rollout, state.change
    return DeploymentAnswer(
        generation=state.generation,
        phase=state.phase,
        serving=state.serving,
        traffic={model: 100 * weight for model, weight in state.weights.items()},
        frozen=state.frozen,
        rollout=rollout
        and RolloutAnswer(
            deployment_id=rollout.deployment_id,
            candidate=rollout.candidate,
            control=rollout.control,
            strategy=rollout.strategy,
            step=rollout.step + 1,
            steps=len(rollout.steps),
            step_since=rollout.step_since,
        ),
        retired=list(state.retired),
        event=change.event,
        by=change.by,
        reason=change.reason,
        at=change.at,
    )
