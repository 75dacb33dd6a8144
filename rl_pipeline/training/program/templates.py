"""A model's chat template, and what is done in its place where it cannot show a part of a conversation.

Templates are what people have written for their models: some know no calls of tools, no answers of tools or no system,
some want user and assistant to alternate, some leave out what was said. Each is asked once, with stand-ins, what it can
show. What is played and what is learnt is read through this, so that both are the same text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.errors import PipelineError

Message = Mapping[str, Any]


def _stand_in(role: str, word: str) -> Message:
    """A single word: whatever a template does with the words of a message, it leaves that whole."""
    return {"role": role, "content": f"StandIn{word}"}


QUESTION, ANSWER, RESULT = _stand_in("user", "Question"), _stand_in("assistant", "Answer"), _stand_in("tool", "Result")
_FURTHER, _LAST, _MORE = _stand_in("user", "Further"), _stand_in("user", "Last"), _stand_in("tool", "More")
_RULE, _RULES = _stand_in("system", "Rule"), _stand_in("system", "Several")
_CALL = {"type": "function", "function": {"name": "StandInTool", "arguments": {"StandInKey": "StandInValue"}}}
_OF_CALL = ("StandInTool", "StandInKey", "StandInValue")
_SPOKEN = str(ANSWER["content"])

_OPENED = re.compile(r"(<[^<>|/\s]+>)\s*\Z")
"""A tag that is opened for the answer, as `<think>`."""


class NoConversation(PipelineError):
    """The model cannot hold a conversation: no other rows and no other attempt would change that."""

    code: ClassVar[FailureCode] = "UNKNOWN"


class Refusal(ValueError):
    """The template does not take the messages, for the reason that is its cause."""


class ChatTemplate:
    """Conversations as text, by the template of one tokenizer. All of it raises `Refusal`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.chat_template is None:
            raise NoConversation("The model's tokenizer has no chat template: choose a model that can chat.")
        self._tokenizer = tokenizer
        self._wants_parts = False
        if not self._shows(QUESTION, ANSWER, _FURTHER):
            self._wants_parts = True  # as templates of models that see do
        if not self._shows(QUESTION, ANSWER, _FURTHER):
            self._wants_parts = False
            raise NoConversation(
                f"The model's chat template {self._fault()}: choose a model that can chat, or mend its template."
            )
        before, _, after = self._templated([QUESTION, ANSWER, _FURTHER], invites=False).partition(_SPOKEN)
        self._frame = (before, after)
        self._invitation = self._lacking_invitation()
        self._told_by_user = self._roles_to_swap()
        self._merged = self._roles_to_merge()
        native = self._native_calls("", [_CALL])
        self._shows_calls = native is not None and all(word in native for word in _OF_CALL)

    @property
    def notes(self) -> list[str]:
        """What people should know of how the template is used."""
        opened = _OPENED.search(self.opening([QUESTION]))
        told = {
            "shows no calls of tools within an answer: any are JSON in what the agent says": not self._shows_calls,
            "shows no answers of tools: where there are any, the user says them": "tool" in self._told_by_user,
            "shows no instructions of a system: where there are any, the user says them": "system"
            in self._told_by_user,
            "wants user and assistant to alternate: what the user says at once is one message": "user" in self._merged,
            f"opens {opened and opened[1]} before an answer: what agents wrote is learnt behind it": opened is not None,
        }
        return [f"The model's chat template {note}." for note, holds in told.items() if holds]

    def opening(self, messages: Sequence[Message]) -> str:
        """Everything before the model's first answer; without messages, what stands before its words anyway."""
        if messages:
            return self._inviting(messages)
        try:
            return self._inviting([])
        except Refusal:
            return self._templated([ANSWER], invites=False).partition(_SPOKEN)[0]

    def after_answer(self, messages: Sequence[Message]) -> str:
        """What comes between the words of an answer and those of the next one.

        It is rendered behind a stand-in, so that nothing earlier is rendered twice: a template that rewrites the past,
        as some do with thoughts, changes nothing that the model has read or written already.
        """
        return self._inviting([QUESTION, ANSWER, *messages]).partition(_SPOKEN)[2]

    def answer(self, message: Message, read: str) -> str:
        """What the agent wrote after what it `read`, calls too. A tag that was opened for it is not opened twice."""
        written = self._written(message)
        if (opened := _OPENED.search(read)) and written.startswith(opened[1]):
            return written.removeprefix(opened[0] if written.startswith(opened[0]) else opened[1])
        return written

    def _written(self, message: Message) -> str:
        """In the template's own notation where it has one: else calls are JSON, one below the other."""
        content, calls = str(message["content"]), message.get("tool_calls") or []
        if not calls:
            return content
        if self._shows_calls:
            if (together := self._native_calls(content, calls)) is not None:
                return together
            alone = [self._native_calls("", [call]) for call in calls]
            if None not in alone:
                return _below(content, *map(str, alone))
        return _below(content, *map(_as_json, calls))

    def _native_calls(self, content: str, calls: Sequence[Any]) -> str | None:
        """What the template makes of an answer with calls; None if it leaves out any of them."""
        names = [str(_function_of(call).get("name")) for call in calls]
        # Most templates write the arguments as JSON themselves; some want them written.
        for shaped in (calls, [_with_written_arguments(call) for call in calls]):
            told = self._framed(_SPOKEN, shaped) if content else None
            if told is not None and told.startswith(_SPOKEN) and _has_all(told, names):
                return content + told.removeprefix(_SPOKEN)
            told = self._framed("", shaped)
            if told is not None and _has_all(told, names):
                return _below(content, told)
        return None

    def _framed(self, content: str, calls: Sequence[Any]) -> str | None:
        """What the template makes of an answer, without what it has around every answer."""
        spoken = {"role": "assistant", "content": content, "tool_calls": calls}
        before, after = self._frame
        try:
            text = self._templated([QUESTION, spoken, _FURTHER], invites=False)
        except Refusal:
            return None
        if len(text) < len(before) + len(after) or not (text.startswith(before) and text.endswith(after)):
            return None
        return text[len(before) : len(text) - len(after)]

    def _lacking_invitation(self) -> str:
        """What stands before the words of an answer, where the template does not say so if it is asked to."""
        told, asked = (self._templated([QUESTION], invites=invites) for invites in (False, True))
        before = self._frame[0]
        if told != asked or not before.startswith(told) or not before[len(told) :].strip():
            return ""
        return before[len(told) :]

    def _roles_to_swap(self) -> set[str]:
        """Whose words the user says."""
        ways = {
            "tool": ([RESULT], [RESULT, _MORE], [RESULT, _FURTHER]),
            "later system": ([_RULE], [_RULE, _FURTHER]),
        }
        swapped = {
            role for role, shown in ways.items() if not all(self._shows(QUESTION, ANSWER, *each) for each in shown)
        }
        return swapped if self._shows(_RULE, QUESTION, ANSWER, _FURTHER) else swapped | {"system"}

    def _roles_to_merge(self) -> set[str]:
        """Who may not say two things in a row."""
        at_once = self._shows(QUESTION, _FURTHER) and self._shows(QUESTION, ANSWER, _FURTHER, _LAST)
        return {
            role
            for role, is_shown in (("user", at_once), ("system", self._shows(_RULE, _RULES, QUESTION)))
            if not is_shown
        }

    def _shows(self, *messages: Message) -> bool:
        """Whether the template shows all that they say, in their order."""
        try:
            text = self._templated(messages, invites=True)
        except Refusal:
            return False
        places = [text.find(str(message["content"])) for message in messages]
        return places[0] >= 0 and places == sorted(set(places))

    def _fault(self) -> str:
        try:
            self._templated([QUESTION, ANSWER, _FURTHER], invites=True)
        except Refusal as refusal:
            return f"refuses a plain conversation ({refusal})"
        return "hides words of a plain conversation"

    def _inviting(self, messages: Sequence[Message]) -> str:
        text = self._templated(self._adapted(messages), invites=True)
        return text if text.endswith(self._invitation) else text + self._invitation

    def _adapted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as the template can show them."""
        adapted: list[Message] = []
        begun = False
        for message in messages:
            begun = begun or message["role"] != "system"
            shown = self._as_shown(message, "later system" if begun and message["role"] == "system" else None)
            if adapted and shown["role"] == adapted[-1]["role"] and shown["role"] in self._merged:
                shown = {**shown, "content": f"{adapted.pop()['content']}\n{shown['content']}"}
            adapted.append(shown)
        return adapted

    def _as_shown(self, message: Message, kind: str | None) -> Message:
        if (kind or message["role"]) in self._told_by_user:
            return {**message, "role": "user"}
        if message.get("tool_calls") and not self._shows_calls:
            return {"role": message["role"], "content": self._written(message)}
        return message

    def _templated(self, messages: Sequence[Message], *, invites: bool) -> str:
        plain: Any = list(messages)
        if self._wants_parts:
            plain = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
        try:
            return str(self._tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=invites))
        except (TemplateError, TypeError, ValueError) as error:
            raise Refusal(str(error)) from error


def _has_all(text: str, names: Sequence[str]) -> bool:
    return all(name in text for name in names)


def _below(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


def _function_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    return function if isinstance(function, Mapping) else call


def _with_written_arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = _function_of(call)
    if isinstance(function.get("arguments"), str):
        return call
    return {**call, "function": {**function, "arguments": _json(function.get("arguments") or {})}}


def _as_json(call: Mapping[str, Any]) -> str:
    function = _function_of(call)
    return _json({"name": function.get("name"), "arguments": function.get("arguments") or {}})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
