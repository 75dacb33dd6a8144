"""The door of every route: the key, its scope and its rate, before anything of the request is read."""

from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.responses import Response

from rl_pipeline.contracts.fields import ClosedObject
from rl_pipeline.contracts.registry import CONTRACT_NAMES, validated
from rl_pipeline.contracts.strict_json import parse_strict_json
from rl_pipeline.service.answers import Answer
from rl_pipeline.service.keys import ApiKey, Scope
from rl_pipeline.service.limits import RateLimiter
from rl_pipeline.service.service import Service

Body = TypeVar("Body", bound=ClosedObject)

_BEARER = HTTPBearer(auto_error=False, scheme_name="bearer", description="Authorization: Bearer <key>")
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, scheme_name="key", description="X-API-Key: <key>")


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Running = Annotated[Service, Depends(_service)]


def needs(scope: Scope) -> Any:
    """A dependency that gives the holder of the request's key, if it may do this."""

    async def holder(
        request: Request,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
        header: Annotated[str | None, Security(_HEADER)],
    ) -> ApiKey:
        service: Service = request.app.state.service
        limiter: RateLimiter = request.app.state.limiter
        key = service.configuration.keyring.holder(bearer.credentials if bearer else header)
        key.check(scope, service.now())
        limiter.take(key)
        return key

    return Depends(holder)


async def read_body(request: Request, model: type[Body]) -> Body:
    """The request's JSON as a model; nothing at all stands for an empty object. Raises `ContractError`."""
    data = await request.body()
    return validated(model, parse_strict_json(data or b"{}", names=CONTRACT_NAMES))


def answered(answer: Answer, status: int = 200) -> Response:
    """An answer as it is sent. What is not known is left out."""
    return raw(answer.model_dump_json(exclude_none=True).encode(), status)


def raw(data: bytes, status: int = 200) -> Response:
    """JSON that is written already."""
    return Response(data, status, media_type="application/json")


def takes(model: type[ClosedObject], *, required: bool = True) -> dict[str, Any]:
    """The request's body in the OpenAPI document, for a route that reads it itself."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}
