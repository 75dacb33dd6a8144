"""OTLP's protobuf as its JSON: Python's exporters speak nothing else. It needs `pip install 'rl-pipeline[otlp]'`.

Imported by whoever is sent protobuf: what takes JSON alone does without the package.
"""

from base64 import b64decode
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from rl_pipeline.collection.formats.otlp_spans import located_spans
from rl_pipeline.collection.formats.values import JsonObject

_IDS = ("traceId", "spanId", "parentSpanId")


def request_of_protobuf(body: bytes) -> JsonObject:
    """A request as OTLP's JSON has it: with numbers for enumerations, and ids in hexadecimal. Raises `ValueError`."""
    try:
        told: JsonObject = MessageToDict(ExportTraceServiceRequest.FromString(body), use_integers_for_enums=True)
    except DecodeError:
        raise ValueError("no request of OTLP") from None
    for _, span in located_spans(told):
        for named in (span, *span.get("links", ())):
            named |= {name: b64decode(named[name]).hex() for name in _IDS if name in named}
    return {"resourceSpans": [], **told}


def response_as_protobuf(told: dict[str, Any]) -> bytes:
    """An answer of OTLP's JSON, packed."""
    packed: bytes = ParseDict(told, ExportTraceServiceResponse()).SerializeToString()
    return packed
