"""A model server for the length of a block."""

import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from rl_pipeline.serving.children import ChildFailed
from rl_pipeline.serving.model_child import loading_model, served_model


def asked(address: str, path: str, body: object) -> tuple[int, bytes]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    try:
        connection.request("POST", f"{parts.path}{path}", json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}


def test_it_serves_within_the_block_and_is_gone_after_it(tiny_model: Path, tmp_path: Path) -> None:
    before, log = children(), tmp_path / "logs" / "validation.log"
    with served_model(tiny_model, "tiny", log) as address:
        assert len(children() - before) == 1
        request = {"messages": [{"role": "user", "content": "look around"}], "max_tokens": 3, "temperature": 0}
        status, content = asked(address, "/chat/completions", request)
        assert (status, json.loads(content)["model"]) == (200, "tiny")
    assert children() == before
    with pytest.raises(ConnectionRefusedError):
        asked(address, "/chat/completions", request)
    assert log.exists()


def test_it_is_gone_too_when_the_block_fails(tiny_model: Path, tmp_path: Path) -> None:
    before = children()
    with pytest.raises(ZeroDivisionError), served_model(tiny_model, "tiny", tmp_path / "log"):
        raise ZeroDivisionError
    assert children() == before


def test_several_load_side_by_side_and_each_is_waited_for_where_it_is_needed(tiny_model: Path, tmp_path: Path) -> None:
    before, log = children(), tmp_path / "log"
    with loading_model(tiny_model, "one", log) as one, loading_model(tiny_model, "other", log) as other:
        assert len(children() - before) == 2
        assert one() == one() != other()
    assert children() == before


def test_what_is_no_model_is_an_error_that_names_the_log(tmp_path: Path) -> None:
    before, log = children(), tmp_path / "log"
    with (
        pytest.raises(ChildFailed, match="broken ended before it served") as failed,
        served_model(tmp_path / "nothing", "broken", log),
    ):
        pytest.fail("there is nothing to serve")
    assert str(log) in str(failed.value)
    assert log.read_bytes()
    assert children() == before
