"""Recording MassGen, by the names of its own documentation; the released package has no `massgen.rl`.

    from massgen.chat_agent import SingleAgent
    from rl_pipeline.collection.massgen import RLAgentMixin, RLConfig, StoreConfig

    class RLSingleAgent(RLAgentMixin, SingleAgent):
        pass

Nothing here imports MassGen, and nothing here breaks or holds up an agent.
"""

from rl_pipeline.collection.massgen.agent import RLAgentMixin
from rl_pipeline.collection.massgen.collector import TraceCollector
from rl_pipeline.collection.massgen.config import AlgorithmConfig, RLConfig, StoreConfig
from rl_pipeline.collection.massgen.orchestrator import RLOrchestratorMixin
from rl_pipeline.collection.massgen.spans import (
    ContentSpan,
    CoordinationSpan,
    PromptSpan,
    ReasoningSpan,
    RewardSpan,
    ToolSpan,
    Trace,
)
from rl_pipeline.collection.massgen.store import LightningStore, TracesAreElsewhere
from rl_pipeline.rewards.massgen import RewardComputer

__all__ = [
    "AlgorithmConfig",
    "ContentSpan",
    "CoordinationSpan",
    "LightningStore",
    "PromptSpan",
    "RLAgentMixin",
    "RLConfig",
    "RLOrchestratorMixin",
    "ReasoningSpan",
    "RewardComputer",
    "RewardSpan",
    "StoreConfig",
    "ToolSpan",
    "Trace",
    "TraceCollector",
    "TracesAreElsewhere",
]
