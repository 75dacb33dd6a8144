"""The rewards of MassGen under its own names: for tool calls, answers, coordination, votes and restarts.

What they are worth is in `formulas.py`; here is only how MassGen's events are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_pipeline.rewards import formulas


@dataclass(frozen=True)
class RewardComputer:
    """Computes rewards with the methods of MassGen's class of this name.

    `token_penalty_cap` is the most that tokens can cost: without it, 30,000 of them cost 20, whatever the answer.
    """

    token_penalty_cap: float = -1.0

    def compute_tool_reward(self, tool_call: Mapping[str, Any], result: object) -> float:
        """+1 for a call that gave something, -0.5 for one that gave nothing, -1 for one that failed.

        Failed is an exception, or an object that says so by a filled `error` or by `success` or `is_error`. The call
        itself does not matter: a name with "search" or "code" in it is worth no more than another.
        """
        failed = _failed(tool_call) or _failed(result)
        reward = formulas.tool_execution(1, int(failed), int(not failed and _is_empty(result)), 0)
        return 0.0 if reward is None else reward

    def compute_answer_quality_reward(self, answer: str, reference: str | None = None) -> float:
        """Between 0 and 1, by structure, depth and, where there is one, likeness to the reference."""
        structure, depth = formulas.answer_structure(answer), formulas.answer_depth(answer)
        similarity = formulas.answer_similarity(answer, reference) if reference else None
        reward = formulas.answer_quality(structure, depth, similarity)
        return 0.0 if reward is None else reward

    def compute_coordination_reward(
        self, coordination_rounds: int, final_answer_quality: float, token_usage: int, consensus_achieved: bool
    ) -> float:
        """Twice the quality of the answer, with consensus for it and rounds and tokens beyond the usual against it."""
        return formulas.coordination(
            coordination_rounds,
            final_answer_quality,
            token_usage,
            consensus=consensus_achieved,
            token_penalty_cap=self.token_penalty_cap,
        )

    def compute_voting_reward(self, voted_for: str, actual_winner: str) -> float:
        """+1 for a vote for the winner, else -0.5."""
        return formulas.vote(right=voted_for == actual_winner)

    def compute_restart_decision_reward(
        self, decision: bool, previous_quality: float, new_quality: float | None = None
    ) -> float:
        """Between -0.5 and +1, by what beginning again, or going on, did to the answer; 0 while that is not known."""
        return formulas.restart_decision(restarted=decision, quality_before=previous_quality, quality_after=new_quality)


def _failed(report: object) -> bool:
    if isinstance(report, Mapping):
        return bool(report.get("error")) or report.get("success") is False or report.get("is_error") is True
    return isinstance(report, BaseException)


def _is_empty(result: object) -> bool:
    """Whether there is nothing in it, however wrapped; a zero and a false are results."""
    if isinstance(result, Mapping):
        says = [value for name, value in result.items() if name not in ("success", "error", "is_error")]
        return all(map(_is_empty, says))
    if isinstance(result, list | tuple | set | frozenset):
        return all(map(_is_empty, result))
    return result is None or (isinstance(result, str | bytes) and not result.strip())
