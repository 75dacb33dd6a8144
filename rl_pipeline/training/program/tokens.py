"""Conversations as a model learns from them: token ids, and which of them the agent wrote.

A conversation is made turn by turn, as it is when the model plays (`turn_tokens.py`): what is learnt is what the model
would have written where it was asked to, every character of it and the token that ends the turn, and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from transformers import PreTrainedTokenizerBase

from rl_pipeline.training.program.dataset import Message, RefusedByTemplate, UnusableMessages
from rl_pipeline.training.program.templates import QUESTION, Refusal
from rl_pipeline.training.program.turn_tokens import TurnTokens


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
        self._tokens = TurnTokens(tokenizer, None)

    def render(self, messages: Sequence[Message]) -> Rendered:
        """All of the conversation, up to the end of its last answer. Raises `RefusedByTemplate`."""
        try:
            return self._rendered(messages)
        except Refusal as refusal:
            # Its own words may hold what was said.
            raise RefusedByTemplate(f"the chat template refuses it: {type(refusal.__cause__).__name__}") from None

    def _rendered(self, messages: Sequence[Message]) -> Rendered:
        tokens, template = self._tokens, self._tokens.template
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        read = template.opening(messages[: answers[0]] if answers else messages)
        parts = [(tokens.ids_of(read), False)]
        for place, following in pairwise([*answers, len(messages)]):
            answer, is_last = messages[place], following == len(messages)
            written = tokens.ids_of(template.answer(answer, read))
            read = template.after_answer([QUESTION] if is_last else messages[place + 1 : following])
            end, between = tokens.ended(read)
            parts += [(written + end, answer["trained"]), ([] if is_last else between, False)]
        return Rendered(
            [token for part, _ in parts for token in part], [trained for part, trained in parts for _ in part]
        )

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
