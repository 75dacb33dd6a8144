"""`/api/v1/memory`: what agents remember, as the learning architecture calls it."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from rl_pipeline.service.access import Running, answered, needs, read_body, takes
from rl_pipeline.service.memory_answers import (
    ConsolidationAnswer,
    MemoriesAnswer,
    StoredMemoryAnswer,
    consolidated,
    found_memories,
    stored_memory,
)
from rl_pipeline.service.routers.bodies import Consolidate, Memory, Recollection
from rl_pipeline.stores.agent_memories import MEMORY_TYPES

router = APIRouter(prefix="/api/v1/memory", tags=["memory"])


@router.post(
    "/store",
    status_code=201,
    response_model=StoredMemoryAnswer,
    openapi_extra=takes(Memory),
    dependencies=[needs("memory")],
)
async def store_memory(
    request: Request,
    service: Running,
    idempotency_key: Annotated[
        str | None, Header(max_length=256, description="The same key of the same agent is the same memory.")
    ] = None,
) -> Response:
    """Have something remembered, redacted; it is found from the answer on."""
    body = await read_body(request, Memory)
    system = await asyncio.to_thread(service.memories.system)
    memory = await system.store_experience(
        body.agent_id, body.content, memory_type=body.memory_type, importance=body.importance, key=idempotency_key
    )
    return answered(stored_memory(memory), 201)


@router.post(
    "/retrieve", response_model=MemoriesAnswer, openapi_extra=takes(Recollection), dependencies=[needs("memory")]
)
async def retrieve_memories(request: Request, service: Running) -> Response:
    """What may help with a task: new episodes, alike ones, and facts; exactly `k` where there are so many."""
    body = await read_body(request, Recollection)
    system = await asyncio.to_thread(service.memories.system)
    found = await system.retrieve_for_task(
        body.context,
        body.k,
        memory_types=body.memory_types or MEMORY_TYPES,
        agent_id=body.agent_id,
        task_type=body.task_type,
        domain=body.domain,
    )
    return answered(found_memories(found))


@router.post(
    "/consolidate",
    response_model=ConsolidationAnswer,
    openapi_extra=takes(Consolidate, required=False),
    dependencies=[needs("memory")],
)
async def consolidate_memories(request: Request, service: Running) -> Response:
    """Merge what was remembered on a day, else today, with what came before it, into facts and procedures."""
    body = await read_body(request, Consolidate)
    system = await asyncio.to_thread(service.memories.system)
    return answered(consolidated(await asyncio.to_thread(system.consolidate, body.day)))
