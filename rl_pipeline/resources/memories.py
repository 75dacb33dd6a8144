"""How this deployment remembers, as a Dagster resource."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import dagster as dg
from pydantic import Field

from rl_pipeline.memory.consolidating import WINDOW_DAYS, Wording
from rl_pipeline.memory.embedding import Embed, MiniLM, embedding_by, unembedded
from rl_pipeline.memory.wording import ModelWording
from rl_pipeline.stores.agent_memories import AgentMemories
from rl_pipeline.stores.opened_memories import open_memories


class MemoriesResource(dg.ConfigurableResource[AgentMemories]):
    """Opens the store of memories, and knows what is kept of them."""

    store: str = Field(description="postgresql://…, or the file of an SQLite.")
    budget: int = Field(10_000, description="Memories that each agent keeps.")
    half_life_days: float = Field(30, description="So soon a memory that nobody looks up is worth half.")
    retention_days: int = Field(180, description="So long memories are kept.")
    window_days: int = Field(WINDOW_DAYS, description="Days of episodes that facts and procedures are made of.")
    dense_weight: float = Field(0, description="Share of embeddings; above 0 memories get them.")
    model_url: str | None = Field(None, description="An OpenAI-compatible server that puts facts into words.")
    model: str = Field("", description="Its model.")
    model_key: str = Field("", description="Its key, where it asks for one.")

    @contextmanager
    def open(self) -> Iterator[AgentMemories]:
        """The store for the length of the block. Raises `MemoriesUnavailable`."""
        with closing(open_memories(self.store)) as memories:
            yield memories

    @property
    def retention(self) -> timedelta:
        """How long memories are kept."""
        return timedelta(days=self.retention_days)

    @property
    def half_life(self) -> timedelta:
        """How soon a memory that nobody looks up is worth half."""
        return timedelta(days=self.half_life_days)

    def embed(self) -> Embed:
        """What gives memories their embeddings. Raises `EmbeddingsMissing`."""
        return embedding_by(MiniLM()) if self.dense_weight else unembedded

    def wording(self) -> Wording | None:
        """What puts facts into words."""
        return ModelWording(self.model_url, self.model, self.model_key or None) if self.model_url else None
