"""Traces as other tools write them, each with what was done in it and what came back."""

from typing import Any

from rl_pipeline.collection.formats.otlp_values import listed_attributes

Told = list[tuple[str, Any]]
"""The tool that was called, or what was answered; and what came back."""

SAID: Told = [("Done.", None)]


def request(*spans: dict[str, Any], **names: str) -> dict[str, Any]:
    scope = {names.get("scope", "scope"): {"name": "tracer"}, "spans": list(spans)}
    resource = {"attributes": listed_attributes({"service.name": "shop"})}
    return {"resourceSpans": [{"resource": resource, names.get("scopes", "scopeSpans"): [scope]}]}


def span(number: int, attributes: dict[str, Any], *events: dict[str, Any], trace: str = "5b" * 16) -> dict[str, Any]:
    start = 1_700_000_000_000_000_000 + number * 1_000_000_000
    told: dict[str, Any] = {
        "traceId": trace,
        "spanId": f"{number:016x}",
        "name": "chat m",
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 500_000_000),
        "attributes": listed_attributes(attributes),
    }
    return told | ({"events": list(events)} if events else {})


def event(name: str, **attributes: Any) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return {"timeUnixNano": "1700000000000000000", "name": name, "attributes": listed_attributes(named)}


CALLED = '[{"id":"a","type":"function","function":{"name":"look","arguments":"{}"}}]'
ANSWERED = '{"role":"assistant","content":"Done."}'
SDK_SHOWN = '[{"role":"user","content":[{"type":"text","text":"Hi"}]}'
SDK_CALL = '{"type":"tool-call","toolCallId":"a","toolName":"look","input":{"at":"."}}'
SDK_RESULT = '{"type":"tool-result","toolCallId":"a","toolName":"look","output":{"type":"text","value":"b"}}'

WILD_OTLP: dict[str, tuple[str, Any, Told]] = {
    "messages in events": (
        "otlp",
        request(
            span(
                1,
                {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"},
                event("gen_ai.system.message", content="Be kind."),
                event("gen_ai.user.message", content="Hi"),
                event("gen_ai.choice", index=0, message=f'{{"role":"assistant","tool_calls":{CALLED}}}'),
            ),
            span(
                2,
                {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"},
                event("gen_ai.system.message", content="Be kind."),
                event("gen_ai.user.message", content="Hi"),
                event("gen_ai.assistant.message", role="assistant", tool_calls=CALLED),
                event("gen_ai.tool.message", id="a", content="b"),
                event("gen_ai.choice", index=0, message=ANSWERED),
            ),
        ),
        [("look", "b"), *SAID],
    ),
    "messages in the content of events": (
        "otlp",
        request(
            span(
                1,
                {"gen_ai.system": "az.ai.inference"},
                event("gen_ai.user.message", gen_ai__event__content='{"role":"user","content":"Hi"}'),
                event("gen_ai.choice", gen_ai__event__content=f'{{"index":0,"message":{ANSWERED}}}'),
            )
        ),
        SAID,
    ),
    "the details of an inference as an event": (
        "otlp",
        request(
            span(
                1,
                {"gen_ai.operation.name": "chat"},
                event(
                    "gen_ai.client.inference.operation.details",
                    gen_ai__input__messages='[{"role":"user","parts":[{"type":"text","content":"Hi"}]}]',
                    gen_ai__output__messages='[{"role":"assistant","parts":[{"type":"text","content":"Done."}]}]',
                ),
            )
        ),
        SAID,
    ),
    "prompt and completion as events": (
        "otlp",
        request(
            span(
                1,
                {"gen_ai.system": "openai"},
                event("gen_ai.content.prompt", gen_ai__prompt='[{"role":"user","content":"Hi"}]'),
                event("gen_ai.content.completion", gen_ai__completion=f"[{ANSWERED}]"),
            )
        ),
        SAID,
    ),
    "prompt and completion as text": (
        "otlp",
        request(span(1, {"gen_ai.prompt": "Hi", "gen_ai.completion": "Done."})),
        SAID,
    ),
    "an answer without its prompt": (
        "otlp",
        request(
            span(1, {"gen_ai.output.messages": '[{"role":"assistant","parts":[{"type":"text","content":"Done."}]}]'})
        ),
        SAID,
    ),
    "two results in one message": (
        "otlp",
        request(
            span(
                1,
                {
                    "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}, '
                    '{"role": "assistant", "parts": ['
                    '{"type": "tool_call", "id": "a", "name": "look", "arguments": null}, '
                    '{"type": "tool_call", "id": "b", "name": "read", "arguments": {"x": 1}}]}, '
                    '{"role": "tool", "parts": [{"type": "tool_call_response", "id": "b", "result": {"q": 1}}, '
                    '{"type": "tool_call_response", "id": "a", "response": "A"}]}]',
                    "gen_ai.output.messages": '[{"role":"assistant","parts":[{"type":"text","content":"Done."}]}]',
                },
            )
        ),
        [("look", "A"), ("read", {"q": 1}), *SAID],
    ),
    "values of OpenInference": (
        "otlp",
        request(
            span(
                1,
                {
                    "openinference.span.kind": "LLM",
                    "input.value": '{"messages": [{"role": "user", "content": "Hi"}]}',
                    "output.value": f'{{"choices": [{{"message": {ANSWERED}}}]}}',
                },
            )
        ),
        SAID,
    ),
    "a function call of OpenInference": (
        "otlp",
        request(
            span(
                1,
                {
                    "llm.input_messages.0.message.role": "user",
                    "llm.input_messages.0.message.content": "Hi",
                    "llm.output_messages.0.message.role": "assistant",
                    "llm.output_messages.0.message.function_call_name": "look",
                    "llm.output_messages.0.message.function_call_arguments_json": "{}",
                },
            )
        ),
        [("look", None)],
    ),
    "the AI SDK": (
        "otlp",
        request(
            span(1, {"ai.prompt.messages": f"{SDK_SHOWN}]", "ai.response.toolCalls": f"[{SDK_CALL}]"}),
            span(
                2,
                {
                    "ai.prompt.messages": f'{SDK_SHOWN},{{"role":"assistant","content":[{SDK_CALL}]}},'
                    f'{{"role":"tool","content":[{SDK_RESULT}]}}]',
                    "ai.response.text": "Done.",
                },
            ),
        ),
        [("look", "b"), *SAID],
    ),
    "ids in Base64": (
        "otlp",
        request(span(1, {"gen_ai.prompt": "Hi", "gen_ai.completion": "Done."}, trace="W1tbW1tbW1tbW1tbW1tbWw==")),
        SAID,
    ),
}
