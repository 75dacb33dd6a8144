"""What the attributes of agent-lightning's spans say: a model's prompt and answer, its tokens, a reward, an agent.

The attributes are flat: `gen_ai.prompt.0.role`, `gen_ai.completion.0.tool_calls.0.name`,
`agentlightning.reward.0.value`. Newer tracers put messages as JSON text into `gen_ai.input.messages` and
`gen_ai.output.messages`.
"""

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_count,
    as_list,
    as_name,
    as_number,
    as_object,
    filled,
    numbers,
    token_ids,
    without,
)

_PROMPT, _ANSWER = "gen_ai.prompt", "gen_ai.completion.0"
_IDS = {
    "prompt_token_ids": ("prompt_token_ids", "llm.hosted_vllm.prompt_token_ids"),
    "completion_token_ids": ("response_token_ids", "llm.hosted_vllm.response_token_ids"),
}
_AGENT_OPERATIONS = ("create_agent", "invoke_agent", "invoke_workflow")
_AGENT_KINDS = ("agent", "chain", "workflow")
_REWARD_SPANS = ("agentlightning.annotation", "agentlightning.reward", "agentlightning.operation")


@dataclass
class Attributes:
    """What tokens a span tells."""

    sampling: JsonObject
    taken: list[str]
    """The attributes that the sampling holds as they are."""


@dataclass
class ModelCall:
    """A call to a model: what it was given, what it answered."""

    prompt: list[JsonObject]
    answer: JsonObject
    sampling: JsonObject
    rest: JsonObject
    """The span without prompt, answer and token ids."""
    model: str | None = None
    temperature: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def written(self) -> JsonObject:
        """The span."""
        attributes = dict(as_object(self.rest.get("attributes")))
        if self.model:
            attributes["gen_ai.request.model"] = self.model
        for number, message in enumerate(self.prompt):
            attributes |= flat(f"{_PROMPT}.{number}", as_told(message))
        attributes |= flat(_ANSWER, as_told(self.answer))
        ids = (("prompt_token_ids", "prompt_token_ids"), ("response_token_ids", "completion_token_ids"))
        attributes |= {name: self.sampling[of] for name, of in ids if of in self.sampling and name not in attributes}
        if "logprobs" in self.sampling and not any(name.startswith("logprobs") for name in attributes):
            attributes["logprobs.content"] = json.dumps([{"logprob": value} for value in self.sampling["logprobs"]])
        return {**self.rest, "attributes": attributes}


def model_call(span: JsonObject) -> ModelCall | None:
    """The call that a span tells; None for every other span."""
    attributes = as_object(span.get("attributes"))
    prompt, answer = nested(attributes, _PROMPT), nested(attributes, _ANSWER)
    taken = [name for name in attributes if name.startswith((f"{_PROMPT}.", f"{_ANSWER}."))]
    if prompt is None and answer is None:
        prompt, answer = _from_text(attributes)
        taken = []
    if not isinstance(answer, dict) or not (as_list(prompt) or tells_something(answer)):
        return None
    told = attributes_of(span)
    taken += told.taken
    call = ModelCall(
        prompt=[as_message(message) for message in as_list(prompt)],
        answer=as_message({**answer, "role": "assistant"}),
        sampling=told.sampling,
        rest={**span, "attributes": without(attributes, taken)},
    )
    describe(call, attributes)
    return call


def describe(call: ModelCall, attributes: JsonObject) -> None:
    """Note the model, the temperature and the tokens of a call, by the names of OpenTelemetry and OpenInference."""
    names = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
    call.model = next((name for name in map(as_name, map(attributes.get, names)) if name), None)
    parameters = as_object(literal(attributes.get("llm.invocation_parameters")))
    call.temperature = as_number(attributes.get("gen_ai.request.temperature", parameters.get("temperature")))
    read = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens", "llm.token_count.prompt")
    written = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens", "llm.token_count.completion")
    call.prompt_tokens, call.completion_tokens = (
        next((count for count in map(as_count, map(attributes.get, counts)) if count is not None), None)
        for counts in (read, written)
    )
    if call.model:
        call.sampling = {"model_version": call.model, **call.sampling}


def attributes_of(span: JsonObject) -> Attributes:
    """The tokens that a span tells, however its tracer wrote them."""
    attributes = as_object(span.get("attributes"))
    sampling: JsonObject = {}
    taken = []
    for name, keys in _IDS.items():
        for key in keys:
            written = attributes.get(key)
            ids = literal(written)
            ids = ids[0] if isinstance(ids, list) and ids and isinstance(ids[0], list) else ids
            if (read := token_ids(ids)) is not None:
                sampling.setdefault(name, read)
                taken += [key] if written == read and key in ("prompt_token_ids", "response_token_ids") else []
    told = attributes.get("logprobs.content")
    drawn = [as_object(token).get("logprob") for token in as_list(literal(told))]
    return Attributes(sampling | filled({"logprobs": numbers(drawn)}), taken)


def reward_of(span: JsonObject) -> float | None:
    """The reward that a span tells, in the words of any version; the first of several is the one that counts."""
    attributes = as_object(span.get("attributes"))
    if span.get("name") in _REWARD_SPANS:
        for name in ("agentlightning.reward.0.value", "agentlightning.reward.primary", "reward"):
            if (value := as_number(attributes.get(name))) is not None:
                return value
    told = as_object(literal(attributes.get("agentops.entity.output", attributes.get("agentops.task.output"))))
    return as_number(told.get("value")) if told.get("type") == "reward" else None


def agent_name(attributes: JsonObject) -> Any:
    """The agent's name, by the attribute that its framework uses."""
    for name in ("agent.name", "recipient_agent_type", "executor.id", "gen_ai.agent.name"):
        if attributes.get(name):
            return attributes[name]
    return attributes.get("operation.name") if attributes.get("agentops.span.kind") == "agent" else None


def is_of_agent(span: JsonObject) -> bool:
    """Whether a span is an agent's own, around its calls to models."""
    attributes = as_object(span.get("attributes"))
    kinds = (attributes.get(f"{name}.span.kind") for name in ("openinference", "traceloop", "agentops"))
    is_kind = any(isinstance(kind, str) and kind.lower() in _AGENT_KINDS for kind in kinds)
    return is_kind or attributes.get("gen_ai.operation.name") in _AGENT_OPERATIONS


def literal(value: Any) -> Any:
    """What text stands for, as JSON or as Python writes it."""
    if not isinstance(value, str):
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            return read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return value


def nested(attributes: JsonObject, prefix: str) -> Any:
    """The object or list that flat attributes below a prefix stand for; None where there are none."""
    root: JsonObject = {}
    for name, value in attributes.items():
        if name.startswith(f"{prefix}."):
            *path, leaf = name[len(prefix) + 1 :].split(".")
            place = root
            for part in path:
                deeper = place.setdefault(part, {})
                if not isinstance(deeper, dict):
                    return None
                place = deeper
            place[leaf] = value
    return _listed(root) if root else None


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    children = {name: _listed(child) for name, child in value.items()}
    if children and all(re.fullmatch(r"\d+", name) for name in children):
        return [children[name] for name in sorted(children, key=int)]
    return children


def flat(prefix: str, value: Any) -> JsonObject:
    """The attributes below a prefix that tell an object or a list."""
    if isinstance(value, dict):
        children = [(str(name), child) for name, child in value.items()]
    elif isinstance(value, list) and value and any(isinstance(child, dict | list) for child in value):
        children = [(str(number), child) for number, child in enumerate(value)]
    else:
        return {prefix: value}
    told: JsonObject = {}
    for name, child in children:
        told |= flat(f"{prefix}.{name}", child)
    return told


def _from_text(attributes: JsonObject) -> tuple[Any, Any]:
    prompt = literal(attributes.get("gen_ai.input.messages"))
    answers = as_list(literal(attributes.get("gen_ai.output.messages")))
    return prompt, answers[0] if answers else None


def tells_something(answer: JsonObject) -> bool:
    """Whether an answer without a prompt is one: tracers leave out prompts, and some spans have the role alone."""
    return bool(answer.get("content") or answer.get("tool_calls"))


def as_message(told: Any) -> JsonObject:
    """A message as OpenAI has it, from one whose calls are flat."""
    message = dict(as_object(told))
    if "role" not in message:
        message["role"] = "assistant" if "tool_calls" in message else "tool" if "tool_call_id" in message else "user"
    calls = []
    for call in map(as_object, as_list(message.get("tool_calls"))):
        function = as_object(call.get("function")) or {
            name: call[name] for name in ("name", "arguments") if name in call
        }
        calls.append({**without(call, ("name", "arguments", "function")), "function": function})
        if "function" not in call:
            calls[-1]["is_flat"] = "type" not in call
    return message | ({"tool_calls": calls} if calls else {})


def as_told(message: JsonObject) -> JsonObject:
    """The message as a span tells it."""
    told = dict(message)
    calls = []
    for call in map(as_object, as_list(message.get("tool_calls"))):
        function, rest = as_object(call.get("function")), without(call, ("is_flat", "function"))
        rest = without(rest, ["type"]) if call.get("is_flat") else rest
        calls.append({**rest, **function} if "is_flat" in call else {**rest, "function": function})
    return told | ({"tool_calls": calls} if calls else {})
