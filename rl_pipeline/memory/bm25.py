"""BM25 over texts that are added one by one, in a few bytes for each word of each text.

The score of text d for query q is the sum over words w of q of

    idf(w) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * |d| / mean length)),   idf(w) = ln(1 + (N - n + 0.5) / (n + 0.5))

where tf counts w in d, n texts of N have it (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009).
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

_K1, _B = 1.5, 0.75
_COUNT_BITS = 8
_MOST = (1 << _COUNT_BITS) - 1

Numbers = NDArray[np.int64]
Scores = NDArray[np.float32]


class Bm25:
    """Texts, numbered from 0 in the order in which they were added. Not safe from several threads."""

    def __init__(self) -> None:
        # Of each word: the number of a text and how often it has the word, in 32 bits.
        self._postings: dict[str, array[int]] = {}
        self._lengths = np.zeros(1024, np.float32)
        self._count = 0
        self._words = 0

    def __len__(self) -> int:
        return self._count

    def add(self, words: Sequence[str]) -> int:
        """Add a text, and return its number."""
        number = self._count
        if number == len(self._lengths):
            self._lengths = np.concatenate([self._lengths, np.zeros_like(self._lengths)])
        self._lengths[number] = len(words)
        for word, count in Counter(words).items():
            if (posting := self._postings.get(word)) is None:
                posting = self._postings[word] = array("I")
            posting.append(number << _COUNT_BITS | min(count, _MOST))
        self._count += 1
        self._words += len(words)
        return number

    def find(self, words: Iterable[str]) -> tuple[Numbers, Scores]:
        """The texts that have any of the words, in order, and the score of each."""
        total = np.zeros(self._count, np.float32)
        typical = max(1.0, self._words / max(1, self._count))
        for word, times in Counter(words).items():
            if posting := self._postings.get(word):
                packed = np.frombuffer(posting, np.uint32)
                texts = packed >> _COUNT_BITS
                counts = (packed & _MOST).astype(np.float32)
                rarity = times * log(1 + (self._count - len(packed) + 0.5) / (len(packed) + 0.5))
                length = self._lengths[texts]
                length *= _K1 * _B / typical
                length += counts
                length += _K1 * (1 - _B)
                counts *= rarity * (_K1 + 1)
                counts /= length
                total[texts] += counts
                del packed  # an array that is looked into cannot grow
        found = np.flatnonzero(total)
        return found, total[found]

    def without(self, gone: NDArray[np.bool_]) -> "Bm25":
        """The same without some texts, of which nothing is left; the others are numbered anew, in their order."""
        kept = ~gone[: self._count]
        number = np.cumsum(kept, dtype=np.uint32) - np.uint32(1)
        fewer = Bm25()
        fewer._lengths = np.concatenate([self._lengths[: self._count][kept], np.zeros(1024, np.float32)])
        fewer._count = int(kept.sum())
        fewer._words = int(fewer._lengths.sum(dtype=np.float64))
        for word, posting in self._postings.items():
            packed = np.frombuffer(posting, np.uint32)
            texts = packed >> _COUNT_BITS
            staying = kept[texts]
            if staying.any():
                left = (number[texts[staying]] << np.uint32(_COUNT_BITS)) | (packed[staying] & _MOST)
                fewer._postings[word] = array("I", left.astype(np.uint32).tobytes())
        return fewer
