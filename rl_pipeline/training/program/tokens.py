"""Conversations as the model reads them: token ids by its own chat template, and which of them the agent wrote.

Where a template marks what the assistant says (`{% generation %}`), the marks are used; for known templates without
marks TRL has a twin with them; for any other, a message begins where the rendering of what came before it ends, which
is checked, since some templates rewrite the past. The token that ends the agent's turn is written by the agent too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template
from trl.chat_template_utils import get_training_chat_template, has_generation_markers

from rl_pipeline.errors import PipelineError
from rl_pipeline.training.program.dataset import Message, UnusableMessages

Span = tuple[int, int]
_render: Any = render_jinja_template  # what it says of its own types is not so


class NoChatTemplate(PipelineError):
    """The base model cannot hold a conversation."""


@dataclass(frozen=True)
class Rendered:
    """A conversation in tokens; `trained` is true for those that the agent wrote and that are to be learnt."""

    input_ids: list[int]
    trained: list[bool]

    @property
    def labels(self) -> list[int]:
        """The tokens to learn, with -100 for all others, as losses expect it."""
        return [token if learn else -100 for token, learn in zip(self.input_ids, self.trained, strict=True)]

    @property
    def teaches(self) -> bool:
        """Whether there is anything to learn from; the first token has nothing before it to be predicted from."""
        return any(self.trained[1:])


class ChatTokens:
    """Renders conversations for one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.chat_template is None:
            raise NoChatTemplate("The base model's tokenizer has no chat template: choose a model that can chat.")
        self._tokenizer = tokenizer
        self._template = tokenizer.get_chat_template()
        self._marked = self._marked_template()
        self._invitation = self._invitation_to_speak()

    def render(self, messages: Sequence[Message]) -> Rendered:
        """All of the conversation. Raises `UnusableMessages` when the template refuses it."""
        text, spans = self._marked_spans(messages) if self._marked else self._measured_spans(messages)
        encoding = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return Rendered(encoding["input_ids"], _covered(encoding["offset_mapping"], spans))

    def last_turns(self, messages: Sequence[Message], max_tokens: int) -> Rendered | None:
        """The conversation, or its opening instructions and as many of its last messages as fit; None if none do.

        Whatever is left begins with something the agent reacts to, never with its own words.
        """
        instructions = _leading(messages, "system")
        spoken = messages[len(instructions) :]
        starts = [0, *(place for place in range(1, len(spoken)) if spoken[place]["role"] != "assistant")]
        return _first_that_fits([partial(self._joined, instructions, spoken[start:]) for start in starts], max_tokens)

    def first_turns(self, opening: Sequence[Message], rest: Sequence[Message], max_tokens: int) -> Rendered | None:
        """What follows `opening`, cut to as many of its first messages as fit; None if not even one does.

        Two ways to go on from an opening stay comparable only if both keep it.
        """
        forgotten = [{**message, "trained": False} for message in opening]
        ends = [end for end in range(len(rest), 0, -1) if rest[end - 1]["role"] == "assistant"]
        return _first_that_fits([partial(self._joined, forgotten, rest[:end]) for end in ends], max_tokens)

    def _joined(self, first: Sequence[Message], second: Sequence[Message]) -> Rendered:
        return self.render([*first, *second])

    def _marked_template(self) -> str | None:
        if has_generation_markers(self._template):
            return self._template
        try:
            return get_training_chat_template(self._tokenizer)
        except (ValueError, TemplateError):
            return None  # TRL does not know this template

    def _marked_spans(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """The text, and what is to be learnt of it by the template's own marks."""
        text, marks = self._rendering(messages, self._marked, marks=True)
        flags = [message["trained"] for message in messages if message["role"] == "assistant"]
        if len(marks) == len(flags):
            chosen = [mark for mark, trained in zip(marks, flags, strict=True) if trained]
        elif all(flags) or not any(flags):
            chosen = marks if all(flags) else []
        else:
            return self._measured_spans(messages)
        return text, [self._with_end_of_turn(text, (self._after_invitation(text, start), end)) for start, end in chosen]

    def _measured_spans(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """The text, and what is to be learnt of it by where each message begins and ends."""
        text, _ = self._rendering(messages, self._template)
        spans = []
        for place, message in enumerate(messages):
            if not message["trained"]:
                continue
            before = self._before(messages[:place], text)
            upto, _ = self._rendering(messages[: place + 1], self._template)
            if not (text.startswith(upto) and upto.startswith(before)):
                raise UnusableMessages("the chat template rewrites earlier messages, so nobody can say who wrote what")
            spans.append(self._with_end_of_turn(text, (len(before), len(upto.rstrip()))))
        return text, spans

    def _rendering(
        self, messages: Sequence[Message], template: str | None, *, prompt: bool = False, marks: bool = False
    ) -> tuple[str, list[Span]]:
        if not messages:
            return "", []
        try:
            texts, spans = _render(
                conversations=[list(messages)],
                chat_template=template,
                add_generation_prompt=prompt,
                return_assistant_tokens_mask=marks,
                **self._tokenizer.special_tokens_map,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise UnusableMessages(f"the chat template refuses it: {type(error).__name__}") from None
        return texts[0], [tuple(span) for span in spans[0]] if marks else []

    def _before(self, messages: Sequence[Message], text: str) -> str:
        """All that stands in `text` before the agent goes on from `messages`."""
        if messages:
            return self._rendering(messages, self._template, prompt=True)[0]
        found = text.find(self._invitation)
        if found < 0 or not self._invitation:
            raise UnusableMessages("it begins with words of the agent, and the chat template does not say where")
        return text[: found + len(self._invitation)]

    def _invitation_to_speak(self) -> str:
        """What a template puts in front of the agent's words when it asks for them."""
        somebody = [{"role": "user", "content": "hello", "trained": False}]
        try:
            told, _ = self._rendering(somebody, self._template)
            asked, _ = self._rendering(somebody, self._template, prompt=True)
        except UnusableMessages:
            return ""
        return asked.removeprefix(told) if asked.startswith(told) else ""

    def _after_invitation(self, text: str, start: int) -> int:
        """Where the agent's own words begin: some marks include a line break that it is given."""
        length = len(self._invitation)
        found = text.rfind(self._invitation, 0, start + length)
        return found + length if 0 <= found <= start <= found + length else start

    def _with_end_of_turn(self, text: str, span: Span) -> Span:
        """The span with the token that ends the turn, which the agent writes too, and without what follows it."""
        start, end = span
        ending = self._tokenizer.eos_token
        if not ending:
            return span
        if (found := text.rfind(ending, start, end)) >= 0 and not text[found + len(ending) : end].strip():
            return start, found + len(ending)
        return (start, end + len(ending)) if text.startswith(ending, end) else span


def _covered(offsets: Sequence[Span], spans: Sequence[Span]) -> list[bool]:
    """Which tokens begin within a span; both are in the order of the text."""
    covered, remaining = [], iter(spans)
    start, end = next(remaining, (0, 0))
    for first, last in offsets:
        while first >= end and end and (following := next(remaining, None)):
            start, end = following
        covered.append(start <= first < end and last > first)
    return covered


def _first_that_fits(renderings: Sequence[Callable[[], Rendered]], max_tokens: int) -> Rendered | None:
    """The first rendering, which is the longest, if it fits; else the longest that does, found by halving."""
    whole = renderings[0]() if renderings else None
    if whole is None or len(whole.input_ids) <= max_tokens:
        return whole
    too_long, fitting, best = 0, len(renderings), None
    while fitting - too_long > 1:
        middle = (too_long + fitting) // 2
        rendered = _shortened(renderings[middle])
        if rendered is not None and len(rendered.input_ids) <= max_tokens:
            fitting, best = middle, rendered
        else:
            too_long = middle
    return best


def _shortened(rendering: Callable[[], Rendered]) -> Rendered | None:
    """Some templates refuse to begin with a tool's answer: a shorter cut may please them."""
    try:
        return rendering()
    except UnusableMessages:
        return None


def _leading(messages: Sequence[Message], role: str) -> Sequence[Message]:
    count = next((place for place, message in enumerate(messages) if message["role"] != role), len(messages))
    return messages[:count]
