"""Invented traces of OpenTelemetry, one of every dialect."""

import json
from typing import Any

from rl_pipeline.collection.formats.otlp_values import listed_attributes


def otlp_span(number: int, name: str, attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": f"{number:016x}",
        "parentSpanId": f"{1:016x}" if number > 1 else "",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(1_760_000_000_000_000_000 + number * 1_000_000_000),
        "endTimeUnixNano": str(1_760_000_000_500_000_000 + number * 1_000_000_000),
        "attributes": listed_attributes(attributes),
        **more,
    }


def otlp_request(*spans: dict[str, Any], service: str = "weather-agent", scope: str = "tracer") -> dict[str, Any]:
    resource = {"attributes": listed_attributes({"service.name": service}), "droppedAttributesCount": 0}
    scopes = [{"scope": {"name": scope, "version": "1"}, "spans": list(spans), "schemaUrl": "https://s"}]
    return {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}


_OTLP_CALL = {"id": "c1", "name": "rain", "arguments": '{"place":"Graz"}'}
OTLP_FLAT: dict[str, Any] = otlp_request(
    otlp_span(1, "agent.run", {"gen_ai.agent.name": "weather", "session.id": "s-1", "user.id": "user-19"}),
    otlp_span(
        2,
        "openai.chat",
        {
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "Rain in Graz?",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.finish_reason": "tool_calls",
            **{f"gen_ai.completion.0.tool_calls.0.{name}": value for name, value in _OTLP_CALL.items()},
            "gen_ai.request.model": "gpt-4o",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.usage.input_tokens": 10,
            "gen_ai.usage.output_tokens": 3,
            "llm.is_streaming": False,
        },
        events=[{"timeUnixNano": "1", "name": "first token"}],
        status={},
    ),
    otlp_span(3, "rain.tool", {"traceloop.span.kind": "tool", "traceloop.entity.name": "rain"}, status={"code": 2}),
    otlp_span(
        4,
        "openai.chat",
        {
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "Rain in Graz?",
            "gen_ai.prompt.1.role": "assistant",
            **{f"gen_ai.prompt.1.tool_calls.0.{name}": value for name, value in _OTLP_CALL.items()},
            "gen_ai.prompt.2.role": "tool",
            "gen_ai.prompt.2.tool_call_id": "c1",
            "gen_ai.prompt.2.content": "no such place",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "I cannot say.",
            "gen_ai.response.model": "gpt-4o-2024",
        },
    ),
)

_PARTS: list[dict[str, Any]] = [
    {"role": "user", "parts": [{"type": "text", "content": "Rain in Graz?"}]},
    {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "Look."},
            {"type": "text", "content": "One moment."},
            {"type": "tool_call", "id": "c1", "name": "rain", "arguments": {"place": "Graz"}},
        ],
    },
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": {"mm": 3}}]},
]
_SCORE = {
    "timeUnixNano": "1760000004500000000",
    "name": "gen_ai.evaluation.result",
    "attributes": listed_attributes({"gen_ai.evaluation.name": "helpful", "gen_ai.evaluation.score.value": 1.0}),
}


def _otlp_messages(*, as_text: bool) -> dict[str, Any]:
    def told(value: Any) -> Any:
        return json.dumps(value, separators=(",", ":")) if as_text else value

    instructions = {"gen_ai.system_instructions": told([{"type": "text", "content": "Help with the weather."}])}
    asked = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "claude"}
    answers = [{"role": "assistant", "parts": [{"type": "text", "content": "3 mm."}], "finish_reason": "stop"}]
    return otlp_request(
        otlp_span(1, "invoke_agent weather", {"gen_ai.conversation.id": "s-2"}),
        otlp_span(
            2,
            "chat claude",
            {
                **asked,
                "gen_ai.input.messages": told(_PARTS[:1]),
                "gen_ai.output.messages": told([{**_PARTS[1], "finish_reason": "tool_call"}]),
                **instructions,
            },
        ),
        otlp_span(3, "execute_tool rain", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "c1"}),
        otlp_span(
            4,
            "chat claude",
            {
                **asked,
                "gen_ai.input.messages": told(_PARTS),
                "gen_ai.output.messages": told(answers),
                **instructions,
            },
            events=[_SCORE],
        ),
    )


OTLP_MESSAGES = _otlp_messages(as_text=False)
OTLP_TEXT = _otlp_messages(as_text=True)

_OPEN_ASKED = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "gpt-4o",
    "llm.invocation_parameters": '{"temperature": 0.25}',
    "llm.token_count.prompt": 20,
    "llm.token_count.completion": 5,
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Help with the weather.",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": "Rain in Graz?",
}
_OPEN_CALL = {"id": "c1", "function.name": "rain", "function.arguments": '{"place":"Graz"}'}
OTLP_OPENINFERENCE: dict[str, Any] = otlp_request(
    otlp_span(
        1, "agent", {"openinference.span.kind": "AGENT", "agent.name": "weather", "input.value": "Rain in Graz?"}
    ),
    otlp_span(
        2,
        "ChatOpenAI",
        {
            **_OPEN_ASKED,
            "llm.output_messages.0.message.role": "assistant",
            **{
                f"llm.output_messages.0.message.tool_calls.0.tool_call.{name}": said
                for name, said in _OPEN_CALL.items()
            },
        },
    ),
    otlp_span(
        3,
        "rain",
        {"openinference.span.kind": "TOOL", "tool.name": "rain", "input.value": "{}", "output.value": "3 mm"},
    ),
)
