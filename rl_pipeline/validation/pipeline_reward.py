"""What the pipeline's own reward gives for attempts in a world: one side of the probe for a hacked reward."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random

from rl_pipeline.contracts import serialize
from rl_pipeline.environments.environment import World
from rl_pipeline.environments.playing import Conversation, play
from rl_pipeline.environments.recording import Recorder
from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.validation.suite import Item

_START = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class PipelineReward:
    """The raw total of each attempt, as if it were the first trajectory of its task type: nothing is usual yet."""

    world: World
    configuration: RewardConfiguration = field(default_factory=RewardConfiguration)

    def __call__(self, items: Sequence[Item], answers: Sequence[str]) -> list[float]:
        """For answers that `Episodes` gave; what was done is done once more, and told as a trajectory."""
        import polars as pl

        from rl_pipeline.rewards.scoring import History, score
        from rl_pipeline.rewards.signals import SIGNALS, signals_of_one

        done = [json.loads(answer)["actions"] for answer in answers]

        def act(conversations: Sequence[Conversation]) -> list[str]:
            return [done[one.number][len(one.messages) // 2] for one in conversations]

        episodes = play(self.world, [self.world.task(item.expected) for item in items], act)
        recorder = Recorder(self.world, "validation", "validation")
        recorded = recorder.record(episodes, start=_START, randomness=Random(0))  # noqa: S311 - ids that nobody keeps
        rows = [
            signals_of_one(json.loads(serialize(one)), None, {"sequence": place})
            for place, one in enumerate(recorded, 1)
        ]
        # A later revision enters nobody's history: each stands alone.
        batch = pl.DataFrame(rows, SIGNALS).with_columns(revision=pl.lit(1, pl.UInt32))
        return [float(total) for total in score(batch, History.empty(), self.configuration)["raw_total"]]
