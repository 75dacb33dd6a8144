"""Spans that arrive over HTTP become trajectories, each trace once; what cannot is kept with its reason."""

import gzip
import http.client
import json
import socket
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from rl_pipeline.collection import Outbox
from rl_pipeline.collection.formats import Importer
from rl_pipeline.collection.formats.format import Origin
from rl_pipeline.collection.formats.otlp import OtlpTraces
from rl_pipeline.collection.formats.otlp_values import listed_attributes
from rl_pipeline.collection.otlp import OtlpReceiver, ReceiverLimits, serving
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.formats import otlp_records
from rl_pipeline_tests.collection.recordings import SECRET, OpenOutbox, arrived
from rl_pipeline_tests.waiting import wait_until

JSON = {"Content-Type": "application/json"}
AT_ONCE = ReceiverLimits(settle_seconds=0, idle_seconds=0)
NEVER = ReceiverLimits(settle_seconds=1e9, idle_seconds=1e9, max_request_bytes=200_000)

OpenReceiver = Callable[..., OtlpReceiver]


@pytest.fixture
def outbox(open_outbox: OpenOutbox, nats_server: NatsServer) -> Outbox:
    return open_outbox(nats_server.url)


@pytest.fixture
def open_receiver(outbox: Outbox, tmp_path: Path) -> Iterator[OpenReceiver]:
    """Opens receivers of one directory, one after the other; all are closed at the end."""
    opened: list[OtlpReceiver] = []

    def open_one(limits: ReceiverLimits = AT_ONCE) -> OtlpReceiver:
        opened.append(OtlpReceiver(outbox, tmp_path / "otlp", limits))
        return opened[-1]

    yield open_one
    for receiver in opened:
        receiver.close()


def post(port: int, body: bytes, path: str = "/v1/traces", **headers: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    with connection.getresponse() as response:
        assert response.getheader("Content-Type") == "application/json"
        return response.status, json.loads(response.read())


def spans_of(request: dict[str, Any]) -> list[dict[str, Any]]:
    return request["resourceSpans"][0]["scopeSpans"][0]["spans"]


def refused(tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "otlp" / "refused.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def waiting(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "otlp").glob("*.trace.jsonl"))


def test_a_trace_that_is_posted_is_a_trajectory_in_the_stream(
    open_receiver: OpenReceiver, stream: JetStream, tmp_path: Path
) -> None:
    with serving(open_receiver(), 0) as port:
        body = json.dumps(otlp_records.OTLP_OPENINFERENCE).encode()
        told = post(port, body, Content_Type="application/json; charset=utf-8")
        assert told == (200, {})
        wait_until(lambda: arrived(stream))
    [sent] = arrived(stream)
    assert sent["trajectory_id"].replace("-", "") == spans_of(otlp_records.OTLP_OPENINFERENCE)[0]["traceId"]
    assert sent["turns"][0]["action"]["tool_name"] == "rain"
    assert waiting(tmp_path) == []
    assert refused(tmp_path) == []


def test_a_trace_may_come_in_pieces_packed_in_any_order_and_twice(
    open_receiver: OpenReceiver, stream: JetStream, tmp_path: Path
) -> None:
    spans = spans_of(otlp_records.OTLP_FLAT)
    receiver = open_receiver(NEVER)
    with serving(receiver, 0) as port:
        for span in (spans[3], spans[1], spans[1], spans[2], spans[0]):
            body = gzip.compress(json.dumps(otlp_records.otlp_request(span)).encode())
            assert post(port, body, Content_Type="application/json", Content_Encoding="gzip") == (200, {})
    assert arrived(stream) == []
    receiver.close()
    open_receiver()  # the next process goes on with what was left
    wait_until(lambda: arrived(stream))
    [sent] = arrived(stream)
    assert [turn["action"].get("tool_name") for turn in sent["turns"]] == ["rain", None]
    assert sent["turns"][0]["result"]["success"] is False
    wait_until(lambda: not waiting(tmp_path))


def test_without_a_root_a_trace_is_complete_after_a_while(
    open_receiver: OpenReceiver, stream: JetStream, tmp_path: Path
) -> None:
    receiver = open_receiver(ReceiverLimits(settle_seconds=0, idle_seconds=1e9))
    receiver.take(otlp_records.otlp_request(spans_of(otlp_records.OTLP_TEXT)[1]))
    receiver.close()
    assert len(waiting(tmp_path)) == 1
    open_receiver(ReceiverLimits(settle_seconds=1e9, idle_seconds=0))
    wait_until(lambda: arrived(stream))


def test_a_killed_process_leaves_at_most_half_a_line_which_goes(
    open_receiver: OpenReceiver, stream: JetStream, tmp_path: Path
) -> None:
    receiver = open_receiver(NEVER)
    receiver.take(otlp_records.OTLP_TEXT)
    receiver.close()
    [file] = waiting(tmp_path)
    with file.open("ab") as opened:
        opened.write(b'{"resourceSpans": [')
    open_receiver()
    wait_until(lambda: arrived(stream))


def test_spans_that_cannot_be_used_are_counted_and_kept_if_they_tell_a_call(
    open_receiver: OpenReceiver, tmp_path: Path
) -> None:
    good = spans_of(otlp_records.OTLP_TEXT)[1]
    bad = [{**good, "traceId": "W47/95gDgQPSabYzgT/GDA=="}, {**good, "spanId": 7}, "span"]
    with serving(open_receiver(NEVER), 0) as port:
        status, told = post(
            port, json.dumps(otlp_records.otlp_request(good, *bad)).encode(), Content_Type="application/json"
        )
    assert status == 200
    assert told["partialSuccess"]["rejectedSpans"] == "3"
    assert "traceId" in told["partialSuccess"]["errorMessage"]
    assert [one["reason"] for one in refused(tmp_path)] == ["unusable_span"] * 2, "a text tells none"
    assert len(waiting(tmp_path)) == 1


def test_nothing_is_kept_of_a_trace_without_a_call_to_a_model(
    open_receiver: OpenReceiver, outbox: Outbox, tmp_path: Path
) -> None:
    receiver = open_receiver()
    request = otlp_records.otlp_request(otlp_records.otlp_span(1, "GET /", {"url.query": f"key={SECRET}"}))
    receiver.take(request)
    wait_until(lambda: not waiting(tmp_path))
    assert outbox.counts.empty == 1
    assert receiver.take(request).spans == 1, "it is late now, and no more of a call to a model"
    assert refused(tmp_path) == []


def test_what_is_refused_is_kept_without_its_secrets_and_can_be_mended(
    open_receiver: OpenReceiver, stream: JetStream, tmp_path: Path
) -> None:
    receiver = open_receiver()
    receiver.take(otlp_records.OTLP_TEXT)
    wait_until(lambda: arrived(stream))
    call = spans_of(otlp_records.OTLP_FLAT)[1]
    told = listed_attributes({"db.password": "Zq91xHunter2", "gen_ai.prompt.0.content": f"Use {SECRET}."})
    receiver.take(otlp_records.otlp_request({**call, "attributes": [*call["attributes"], *told]}))
    receiver.take(otlp_records.otlp_request({**call, SECRET: "a secret as a name"}))
    file = tmp_path / "otlp" / "refused.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    assert not {text for text in (SECRET, "Zq91xHunter2") if text in file.read_text()}
    assert ["record" in line for line in refused(tmp_path)] == [True, False]
    again: list[Any] = []
    [imported, *_] = Importer(refuse=again.append).trajectories([file])
    assert imported.trajectory.turns[0].action.tool_name == "rain"


def test_what_waits_is_its_owners_alone(open_receiver: OpenReceiver, tmp_path: Path) -> None:
    open_receiver(NEVER).take(otlp_records.OTLP_TEXT)
    [file] = waiting(tmp_path)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_what_comes_after_its_trace_was_complete_is_kept_and_said(
    open_receiver: OpenReceiver, stream: JetStream, tmp_path: Path
) -> None:
    receiver = open_receiver()
    receiver.take(otlp_records.OTLP_TEXT)
    wait_until(lambda: arrived(stream))
    rejected = receiver.take(otlp_records.otlp_request(*spans_of(otlp_records.OTLP_TEXT)[2:]))
    assert rejected.spans == 2
    assert [one["reason"] for one in refused(tmp_path)] == ["unusable_span"], "a tool's span alone is of no use"
    assert len(arrived(stream)) == 1


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        pytest.param(b"{", JSON, 400, "no application/json", id="no JSON"),
        pytest.param(b"[" * 100_000, JSON, 400, "no application/json", id="too deep"),
        pytest.param(b"[]", JSON, 400, "resourceSpans", id="another record"),
        pytest.param(b"{", {"Content-Type": "application/x-protobuf"}, 400, "no application/x-pro", id="no protobuf"),
        pytest.param(b"{}", {"Content-Type": "text/plain"}, 415, "send application/json", id="another type"),
        pytest.param(b"{}", {}, 415, "no type", id="no type"),
        pytest.param(b"{}", JSON | {"Content-Encoding": "br"}, 415, "gzip", id="another packing"),
        pytest.param(b"{}", JSON | {"Content-Encoding": "gzip"}, 400, "no gzip", id="not packed"),
        pytest.param(gzip.compress(b"{}")[:-9], JSON | {"Content-Encoding": "gzip"}, 400, "broken off", id="cut"),
        pytest.param(gzip.compress(b" " * 200_001), JSON | {"Content-Encoding": "gzip"}, 413, "smaller", id="a bomb"),
        pytest.param(b"", JSON | {"Content-Length": "200001"}, 413, "smaller", id="too large"),
    ],
)
def test_what_is_no_request_is_answered_as_the_specification_says(
    open_receiver: OpenReceiver, body: bytes, headers: dict[str, str], status: int, said: str
) -> None:
    with serving(open_receiver(NEVER), 0) as port:
        answered, told = post(port, body, **headers)
        assert answered == status
        assert isinstance(told["code"], int)
        assert said in told["message"]
        assert post(port, json.dumps(otlp_records.OTLP_TEXT).encode(), **JSON) == (200, {})


def in_chunks(port: int, *lines: bytes) -> tuple[int, dict[str, Any]]:
    """What is answered to a body that is sent as it is, chunks or not."""
    head = (
        "POST /v1/traces HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(head.encode() + b"".join(lines))
        connection.shutdown(socket.SHUT_WR)
        with http.client.HTTPResponse(connection) as response:
            response.begin()
            return response.status, json.loads(response.read())


def test_a_body_may_come_in_chunks(open_receiver: OpenReceiver, tmp_path: Path) -> None:
    body = json.dumps(otlp_records.OTLP_TEXT).encode()
    with serving(open_receiver(NEVER), 0) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in range(2):  # on one connection: nothing of the first body is left in it
            connection.request("POST", "/v1/traces", iter([body[:1000], body[1000:]]), JSON, encode_chunked=True)
            with connection.getresponse() as response:
                assert (response.status, response.read()) == (200, b"{}")
        connection.close()
        parts = (b"%X;name=value\r\n%b\r\n" % (len(body), body), b"0\r\n", b"Trailer: told\r\n\r\n")
        assert in_chunks(port, *parts) == (200, {})
    assert len(waiting(tmp_path)) == 1


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        pytest.param([b"30d41\r\n"], 413, "smaller", id="too large"),
        pytest.param([b"20000\r\n" + b" " * 0x20000 + b"\r\n"] * 2, 413, "smaller", id="too many"),
        pytest.param([b"-2\r\n{}\r\n"], 400, "size", id="no size"),
        pytest.param([b"2" * 2000], 400, "size", id="a long size"),
        pytest.param([b"2\r\n{}}\r\n"], 400, "longer", id="longer"),
        pytest.param([b"9\r\n{}"], 400, "broken off", id="cut"),
        pytest.param([b"2\r\n{}\r\n0\r\n"], 400, "no end", id="no end"),
    ],
)
def test_chunks_are_read_within_the_limit_or_not_at_all(
    open_receiver: OpenReceiver, lines: list[bytes], status: int, said: str
) -> None:
    with serving(open_receiver(NEVER), 0) as port:
        answered, told = in_chunks(port, *lines)
    assert (answered, said in told["message"]) == (status, True), told


PROTOBUF = {"Content-Type": "application/x-protobuf"}


def as_protobuf(request: dict[str, Any]) -> bytes:
    told = json.loads(json.dumps(request))
    for span in spans_of(told):
        for name in ("traceId", "spanId", "parentSpanId"):
            span[name] = b64encode(bytes.fromhex(span[name])).decode()
    packed: bytes = ParseDict(told, ExportTraceServiceRequest()).SerializeToString()
    return packed


def test_protobuf_is_taken_and_answered_as_json_is(
    open_receiver: OpenReceiver, stream: JetStream, tmp_path: Path
) -> None:
    request = otlp_records.OTLP_FLAT
    with serving(open_receiver(), 0) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for number in range(2):
            connection.request("POST", "/v1/traces", as_protobuf(request), PROTOBUF)
            with connection.getresponse() as response:
                assert (response.status, response.getheader("Content-Type")) == (200, PROTOBUF["Content-Type"])
                told = ExportTraceServiceResponse.FromString(response.read())
            assert told.partial_success.rejected_spans == number * len(spans_of(request)), (
                "the second time they are late"
            )
            wait_until(lambda: arrived(stream))
        connection.close()
    [sent] = arrived(stream)
    [from_json] = OtlpTraces().read(request, Origin("otlp receiver", datetime.now(UTC)))
    assert sent["trajectory_id"] == from_json["trajectory_id"]
    for field in ("tool_name", "tool_args", "raw_response"):
        assert [turn["action"].get(field) for turn in sent["turns"]] == [
            turn["action"].get(field) for turn in from_json["turns"]
        ]
    assert sent["turns"][0]["result"]["success"] is False, "numbers stand for enumerations"
    assert sent["metadata"]["total_tokens"] == 13


def test_without_the_package_protobuf_is_refused_with_what_to_install(
    open_receiver: OpenReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rl_pipeline.collection.otlp.protobuf", None)
    with serving(open_receiver(NEVER), 0) as port:
        status, told = post(port, as_protobuf(otlp_records.OTLP_TEXT), **PROTOBUF)
    assert (status, "pip install 'rl-pipeline[otlp]'" in told["message"]) == (415, True)


def test_other_places_and_methods_are_not_served(open_receiver: OpenReceiver) -> None:
    with serving(open_receiver(NEVER), 0) as port:
        assert post(port, b"{}", path="/v1/logs", **JSON)[0] == 404
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/v1/traces")
        with connection.getresponse() as response:
            assert (response.status, response.getheader("Allow")) == (405, "POST")


def test_more_than_may_wait_is_to_be_sent_again_later(open_receiver: OpenReceiver) -> None:
    limits = ReceiverLimits(settle_seconds=1e9, idle_seconds=1e9, max_waiting_bytes=10, max_trace_bytes=10_000)
    with serving(open_receiver(limits), 0) as port:
        body = json.dumps(otlp_records.OTLP_TEXT).encode()
        assert post(port, body, **JSON) == (200, {})
        assert post(port, body, **JSON)[0] == 503
    with serving(open_receiver(ReceiverLimits(1e9, 1e9, max_trace_bytes=10)), 0) as port:
        assert post(port, body, **JSON)[1]["partialSuccess"]["rejectedSpans"] == "4"


def test_a_trajectory_for_which_the_outbox_has_no_room_is_kept(
    open_receiver: OpenReceiver, outbox: Outbox, tmp_path: Path
) -> None:
    outbox.close()
    open_receiver().take(otlp_records.OTLP_TEXT)
    wait_until(lambda: refused(tmp_path))
    assert [one["reason"] for one in refused(tmp_path)] == ["outbox"]
