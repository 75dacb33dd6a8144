"""A conversation in tokens, turn by turn, by the chat template of any model.

What the model reads and what it writes are tokenised apart: it never writes a token that is half of the one and half
of the other. The token that ends an answer is written by the model too.
"""

from collections.abc import Collection, Sequence

from transformers import GenerationConfig, PreTrainedTokenizerBase

from rl_pipeline.training.program.templates import QUESTION, RESULT, ChatTemplate, Message


class TurnTokens:
    """The tokens of openings, of answers, and of what follows an answer and what ends one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None) -> None:
        self.template = ChatTemplate(tokenizer)
        self._tokenizer = tokenizer
        self.stop_ids = self._stop_ids(generation)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Everything before the model's first answer."""
        return self.ids_of(self.template.opening(messages))

    def following(self, messages: Sequence[Message], last_token: int) -> list[int]:
        """What comes between an answer, whose last token is given, and the next one."""
        token_ids = self.ids_of(self.template.after_answer(messages))
        place = self._place_of_end(token_ids, self.stop_ids)
        return token_ids[place + 1 :] if place is not None and token_ids[place] == last_token else token_ids

    def ended(self, after_answer: str) -> tuple[list[int], list[int]]:
        """The token by which a model ends its answer before this text, if it has one, and what `following` is then."""
        token_ids = self.ids_of(after_answer)
        place = self._place_of_end(token_ids, self.stop_ids)
        if place is not None:
            return token_ids[place : place + 1], token_ids[place + 1 :]
        end = self._tokenizer.eos_token_id
        return [] if end is None else [int(end)], token_ids

    def ids_of(self, text: str) -> list[int]:
        """The tokens of a text as it stands."""
        token_ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids

    def text_of(self, token_ids: Sequence[int]) -> str:
        """An answer as text."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _stop_ids(self, generation: GenerationConfig | None) -> list[int]:
        """What the model, the tokenizer and the template hold for the end of an answer."""
        of_model = generation.eos_token_id if generation is not None else None
        stops = set(of_model if isinstance(of_model, list) else [of_model])
        stops.add(self._tokenizer.eos_token_id)
        special_ids = {token for token, added in self._tokenizer.added_tokens_decoder.items() if added.special}
        special_ids |= set(self._tokenizer.all_special_ids)
        for shown in (QUESTION, RESULT):
            token_ids = self.ids_of(self.template.after_answer([shown]))
            if (place := self._place_of_end(token_ids, special_ids)) is not None:
                stops.add(token_ids[place])
        return sorted(stop for stop in stops if stop is not None)

    def _place_of_end(self, token_ids: Sequence[int], ends: Collection[int]) -> int | None:
        """Where in what follows an answer the token stands that ends it; some templates put a space before it."""
        for place, token in enumerate(token_ids):
            if token == self._tokenizer.eos_token_id or (place == 0 and token in ends):
                return place
            if str(self._tokenizer.decode([token])).strip():
                return None
        return None
