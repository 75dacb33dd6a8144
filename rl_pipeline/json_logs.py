"""The logs of processes that run for long: one JSON object a line, with the ids of what it is about.

Loki finds lines by these ids (deploy/loki). No line holds what a user or a model wrote: a message is written by us, an
error of ours quotes nothing, and of any other only its type and place are told, because its text may quote a value.
"""

import logging
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import IO, Any

import structlog
from structlog.contextvars import bound_contextvars, merge_contextvars

from rl_pipeline.errors import PipelineError

IDS = ("trajectory_id", "job_id", "deployment_id", "model_id", "generation")
"""What `extra` of a log call and `about` may name; nothing else of a record is written."""

Event = MutableMapping[str, Any]


def write_json_logs(component: str, stream: IO[str]) -> None:
    """Let this process log as `component` to the stream, instead of whatever it logged to before."""
    logging.basicConfig(level=logging.INFO, handlers=[json_handler(component, stream)], force=True)


def json_handler(component: str, stream: IO[str]) -> logging.Handler:
    """A handler that writes records as JSON."""

    def name_component(_logger: object, _method: str, event: Event) -> Event:
        event["component"] = component
        return event

    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                merge_contextvars,
                structlog.stdlib.ExtraAdder(allow=IDS),
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
                name_component,
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _tell_error,
                structlog.processors.EventRenamer("message"),
                structlog.processors.JSONRenderer(sort_keys=True),
            ],
        )
    )
    return handler


@contextmanager
def about(**ids: str | int) -> Iterator[None]:
    """What is logged within the block is about these."""
    if unknown := ids.keys() - set(IDS):
        raise ValueError(f"no line of a log is about {', '.join(sorted(unknown))}: name it in IDS")
    with bound_contextvars(**ids):
        yield


def _tell_error(_logger: object, _method: str, event: Event) -> Event:
    """An error by its type and place, and by its text where that is ours."""
    event.pop("stack_info", None)
    given = event.pop("exc_info", None)
    error = given[1] if isinstance(given, tuple) else given
    if not isinstance(error, BaseException):
        return event
    frames = traceback.extract_tb(error.__traceback__)
    event["error"] = type(error).__name__
    event["error_place"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    if isinstance(error, PipelineError):
        event["error_text"] = str(error)
    return event
