"""Logs that machines read: ids as fields, and nothing that somebody else wrote."""

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from rl_pipeline.errors import PipelineError
from rl_pipeline.json_logs import IDS, about, json_handler

SECRET = "what the user wrote"


def fail(error: Exception) -> None:
    raise error


class Log:
    """A logger of its own and what it has written."""

    def __init__(self, name: str) -> None:
        self.stream = io.StringIO()
        self.logger = logging.getLogger(name)
        self.logger.setLevel(logging.INFO)
        self.logger.propagate = False
        self.logger.addHandler(json_handler("gateway", self.stream))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    made = Log(f"rl_pipeline.tests.{request.node.name}")
    yield made
    made.logger.handlers.clear()


def test_a_line_says_when_who_how_bad_and_what(log: Log) -> None:
    log.logger.warning("lost %s", "NATS")
    (line,) = log.lines()
    moment = line.pop("timestamp")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", moment)
    assert line == {"component": "gateway", "level": "warning", "logger": log.logger.name, "message": "lost NATS"}


def test_a_line_names_the_ids_that_it_is_about(log: Log) -> None:
    log.logger.info("begun", extra={"job_id": "job-1", "secret": SECRET})
    with about(trajectory_id="t-1", deployment_id="d-1"):
        log.logger.info("within")
    log.logger.info("after")
    begun, within, after = log.lines()
    assert begun["job_id"] == "job-1"
    assert (within["trajectory_id"], within["deployment_id"]) == ("t-1", "d-1")
    assert not after.keys() & set(IDS)
    assert SECRET not in log.stream.getvalue()


def test_a_block_is_about_ids_only() -> None:
    with pytest.raises(ValueError, match="content"), about(content=SECRET):
        pass


def test_an_error_that_is_not_ours_is_told_without_its_text(log: Log) -> None:
    try:
        fail(KeyError(SECRET))
    except KeyError:
        log.logger.exception("a step failed")
    (line,) = log.lines()
    assert line["error"] == "KeyError"
    assert "test_an_error_that_is_not_ours" in line["error_place"][0]
    assert SECRET not in log.stream.getvalue()


def test_an_error_of_ours_is_told_with_what_to_do(log: Log) -> None:
    try:
        fail(PipelineError("NATS is away: start it"))
    except PipelineError:
        log.logger.exception("a step failed")
    assert log.lines()[0]["error_text"] == "NATS is away: start it"


def test_many_lines_stay_one_a_line(log: Log) -> None:
    log.logger.info("first\nsecond")
    assert [line["message"] for line in log.lines()] == ["first\nsecond"]
