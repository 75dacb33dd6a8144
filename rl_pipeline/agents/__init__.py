"""Agents that come with the pipeline: they attempt tasks of a world with the model that the gateway gives them."""

from rl_pipeline.agents.controller import MDPAgentController, PipelineClient
from rl_pipeline.agents.memory import InProcessMemory, MDPTransition, MemoryManager
from rl_pipeline.agents.opinions import Opinion, OpinionRule
from rl_pipeline.agents.player import Attempt, Player, play_all
from rl_pipeline.agents.service_memory import ServiceMemory

__all__ = [
    "Attempt",
    "InProcessMemory",
    "MDPAgentController",
    "MDPTransition",
    "MemoryManager",
    "Opinion",
    "OpinionRule",
    "PipelineClient",
    "Player",
    "ServiceMemory",
    "play_all",
]
