"""The text of an answer while it is being written, token by token, up to a stop."""

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"
"""What a tokenizer shows for bytes that are no whole character yet."""


class SpokenText:
    """Grows by tokens. `safe` is what will not change any more: it may be shown to the caller."""

    def __init__(self, text_of: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self.text = ""
        self.is_stopped = False
        self._text_of = text_of
        self._stops = stops
        self._held_back = max(map(len, stops), default=1) - 1
        self._token_ids: list[int] = []
        self._shown = 0
        """Tokens whose text is in `text`."""
        self._from = 0
        """Where decoding begins: far enough back that a token's text does not depend on what is before."""

    @property
    def safe(self) -> str:
        """The text without what may yet turn out to be the beginning of a stop."""
        if self.is_stopped or not self._held_back:
            return self.text
        return self.text[: -self._held_back]

    def add(self, token_id: int) -> None:
        """Another token was written."""
        self._token_ids.append(token_id)
        self._grow()

    def finish(self) -> None:
        """No more tokens come: what is unfinished stays so."""
        self._grow(finish=True)
        self._held_back = 0

    def _grow(self, *, finish: bool = False) -> None:
        before = self._text_of(self._token_ids[self._from : self._shown])
        now = self._text_of(self._token_ids[self._from :])
        if self.is_stopped or len(now) <= len(before) or (now.endswith(_UNFINISHED) and not finish):
            return
        searched_from = max(0, len(self.text) - self._held_back)
        text = self.text + now[len(before) :]
        self._from, self._shown = self._shown, len(self._token_ids)
        found = [place for stop in self._stops if (place := text.find(stop, searched_from)) >= 0]
        # In this order: another thread may be looking.
        self.text = text[: min(found)] if found else text
        self.is_stopped = bool(found)
