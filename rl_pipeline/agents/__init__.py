"""Agents that come with the pipeline: they attempt tasks of a world with the model that the gateway gives them."""

from rl_pipeline.agents.opinions import Opinion, OpinionRule
from rl_pipeline.agents.player import Attempt, Player, play_all

__all__ = ["Attempt", "Opinion", "OpinionRule", "Player", "play_all"]
