"""Facts in better words, by a language model, where a deployment names one: any OpenAI-compatible server.

The model puts what is known into one sentence; what is counted, and what contradicts, stays as it was made. A server
that does not answer, or answers with nothing, costs nothing but the sentence: the fact stays as it was made.
"""

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace

from rl_pipeline.memory.consolidated import Consolidated

_SECONDS = 30.0
_MOST_TEXT = 600
_ASKED = (
    "You are given what agents found out about a task, as JSON. Say it in one sentence of at most 40 words: what "
    "holds, and, if there are contradictions, what speaks against it. Add nothing that is not in it. Answer with the "
    "sentence alone."
)

_log = logging.getLogger(__name__)


class ModelWording:
    """The `Wording` of a server. The same facts are asked about once, in this process."""

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._model = model
        self._key = key
        self._known: dict[str, str] = {}

    def reword(self, facts: Sequence[Consolidated]) -> list[Consolidated]:
        """See `Wording`."""
        made, is_there = [], True
        for fact in facts:
            said = {name: value for name, value in fact.content.items() if name != "sources"}
            question = json.dumps(said, sort_keys=True, ensure_ascii=False)
            if is_there and question not in self._known:
                sentence, is_there = self._sentence(question)
                if sentence:
                    self._known[question] = sentence
            made.append(_with(fact, self._known.get(question)))
        return made

    def _sentence(self, question: str) -> tuple[str, bool]:
        """What the server says, and whether it is worth asking it again."""
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": _ASKED}, {"role": "user", "content": question}],
            "temperature": 0,
            "seed": 0,
            "max_tokens": 120,
        }
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)  # noqa: S310 - its own URL
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
                content = json.load(answer)["choices"][0]["message"]["content"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            _log.warning("facts stay in the words they were made in: %s (%s)", self._url, type(error).__name__)
            return "", isinstance(error, urllib.error.HTTPError) and error.code < 500
        return " ".join(str(content or "").split())[:_MOST_TEXT], True


def _with(fact: Consolidated, sentence: str | None) -> Consolidated:
    if not sentence:
        return fact
    return replace(fact, content={**fact.content, "summary": sentence}, searched=(*fact.searched, sentence))
