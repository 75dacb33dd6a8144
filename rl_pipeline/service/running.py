"""The service as a process: uvicorn on uvloop, one process, no access log."""

import socket

import uvicorn

from rl_pipeline.errors import PipelineError
from rl_pipeline.service.app import build_app
from rl_pipeline.service.service import ServiceConfiguration

_BACKLOG = 1024


class AddressUnusable(PipelineError):
    """The service cannot listen where it was told to."""


def run_service(configuration: ServiceConfiguration) -> None:
    """Serve until a signal ends it. Raises `AddressUnusable`."""
    listening = _listen(configuration.host, configuration.port)
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(configuration),
            loop="uvloop",
            http="httptools",
            ws="none",
            # What callers ask for stands in no log: problems of ours do, by their route.
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=10,
        )
    )
    configuration.on_listening(listening.getsockname()[1])
    server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as refused:
        listening.close()
        raise AddressUnusable(
            f"{host}:{port} cannot be listened on ({refused.strerror}): stop what does, or choose another --port"
        ) from None
    listening.listen(_BACKLOG)
    return listening
