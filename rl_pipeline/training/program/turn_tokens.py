"""A conversation in tokens, turn by turn, by the chat template of any model.

What follows an answer is rendered behind a stand-in for it, so that nothing earlier is rendered twice: a template that
rewrites the past, as some do with thoughts, changes nothing that the model has read or written already.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import GenerationConfig, PreTrainedTokenizerBase

from rl_pipeline.errors import PipelineError

Message = Mapping[str, Any]

# Single words: whatever a template does with the words of a message, it leaves these whole.
_QUESTION: Message = {"role": "user", "content": "StandInQuestion"}
_ANSWER: Message = {"role": "assistant", "content": "StandInAnswer"}
_RESULT: Message = {"role": "tool", "content": "StandInResult"}


class NoConversation(PipelineError):
    """The tokenizer cannot hold a conversation."""


class TurnTokens:
    """The tokens of openings, of what follows an answer, and of what ends one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None) -> None:
        if tokenizer.chat_template is None:
            raise NoConversation("the model's tokenizer has no chat template: choose a model that can chat")
        self._tokenizer = tokenizer
        self._shows_tools = self._can_show_tools()
        self.stop_ids = self._stop_ids(generation)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Everything before the model's first answer."""
        return self._ids(self._render(messages))

    def following(self, messages: Sequence[Message], last_token: int) -> list[int]:
        """What comes between an answer, whose last token is given, and the next one."""
        token_ids = self._ids(self._after_answer(messages))
        return token_ids[1:] if token_ids[:1] == [last_token] else token_ids

    def text_of(self, token_ids: Sequence[int]) -> str:
        """An answer as text."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _stop_ids(self, generation: GenerationConfig | None) -> list[int]:
        """What the model, the tokenizer and the template hold for the end of an answer."""
        of_model = generation.eos_token_id if generation is not None else None
        stops = set(of_model if isinstance(of_model, list) else [of_model])
        stops.add(self._tokenizer.eos_token_id)
        stops |= set(self._ids(self._after_answer([_QUESTION]))[:1]) & set(self._tokenizer.all_special_ids)
        return sorted(stop for stop in stops if stop is not None)

    def _can_show_tools(self) -> bool:
        try:
            rendered = self._templated([_QUESTION, _ANSWER, _RESULT])
        except (TemplateError, TypeError, ValueError):
            return False
        return _RESULT["content"] in rendered

    def _after_answer(self, messages: Sequence[Message]) -> str:
        _, shown, after = self._render([_QUESTION, _ANSWER, *messages]).partition(_ANSWER["content"])
        if not shown:
            raise NoConversation("the model's chat template hides its own answers: choose a model that can chat")
        return after

    def _render(self, messages: Sequence[Message]) -> str:
        """The text; where a template knows no tools, the user says what a tool answered."""
        if not self._shows_tools:
            messages = [{**message, "role": "user"} if message["role"] == "tool" else message for message in messages]
        return self._templated(messages)

    def _templated(self, messages: Sequence[Message]) -> str:
        plain: Any = list(messages)
        return str(self._tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True))

    def _ids(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids
