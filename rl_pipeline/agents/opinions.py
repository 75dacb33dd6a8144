"""What a simulated user thinks of an attempt, by a rule that anybody can check.

Of every `one_in` users one says anything at all. Of those, who got what they wanted gives a thumb up, who did not a
thumb down, and of `slips_in` one gives the wrong one: people misjudge, and what learns from them must bear it.
"""

from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Literal
from uuid import UUID

from rl_pipeline.contracts import Feedback

Opinion = Literal["thumbs_up", "thumbs_down"]


@dataclass(frozen=True, slots=True)
class OpinionRule:
    """How often users speak, and how often they are wrong."""

    one_in: int = 4
    slips_in: int = 20

    def opinion(self, success: bool, randomness: Random) -> Opinion | None:
        """Of one attempt; most users say nothing."""
        if randomness.randrange(self.one_in):
            return None
        slips = randomness.randrange(self.slips_in) == 0
        return "thumbs_up" if success != slips else "thumbs_down"


def feedback(opinion: Opinion, trajectory_id: str, session_id: str, at: datetime, randomness: Random) -> Feedback:
    """The opinion as a message."""
    return Feedback.model_validate(
        {
            "feedback_id": str(UUID(int=randomness.getrandbits(128), version=4)),
            "trajectory_id": trajectory_id,
            "session_id": session_id,
            "timestamp": at,
            "kind": opinion,
            "metadata": {"channel": "simulated"},
        }
    )
