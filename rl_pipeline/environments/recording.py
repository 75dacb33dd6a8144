"""Episodes as trajectories of the contract, so that they travel the whole pipeline like an agent's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from rl_pipeline.contracts.trajectory import (
    Action,
    Observation,
    Result,
    Sampling,
    TaskContext,
    Trajectory,
    TrajectoryMetadata,
    Turn,
)
from rl_pipeline.environments.environment import Task, World
from rl_pipeline.environments.playing import Episode, Message

Samplings = Sequence[Sequence[Sampling]]

_HARDEST_TIER = 3


def task_context(world: World, task: Task, messages: Sequence[Message]) -> dict[str, Any]:
    """What a trajectory says of a task, from which the task can be made again; `messages` open the attempt."""
    return {
        "task_id": task.id,
        "group_id": task.id,
        "instructions": messages[0]["content"],
        "domain": "general",
        "task_type": f"{world.name}-tier-{task.tier}",
        "complexity_score": min(1.0, task.tier / _HARDEST_TIER),
        "environment": world.name,
        "environment_task": dict(task.setup),
    }


@dataclass(frozen=True)
class Recorder:
    """Who played, and with what."""

    world: World
    agent_id: str
    model: str
    model_version: str | None = None
    temperature: float | None = None
    seconds_per_turn: float = 1.0
    framework: str = "rl-pipeline-environments"

    def record(
        self, episodes: Sequence[Episode], *, start: datetime, randomness: Random, samplings: Samplings | None = None
    ) -> list[Trajectory]:
        """The trajectories of episodes that were all begun at `start`; ids come from `randomness`.

        `samplings` has, for each episode, how each of its actions was drawn.
        """
        session_id = f"{self.world.name}-{randomness.getrandbits(32):08x}"
        drawn = samplings or [()] * len(episodes)
        return [
            self._trajectory(episode, sampling, start, session_id, randomness)
            for episode, sampling in zip(episodes, drawn, strict=True)
        ]

    def _trajectory(
        self, episode: Episode, sampling: Sequence[Sampling], start: datetime, session_id: str, randomness: Random
    ) -> Trajectory:
        task, turns = episode.task, self._turns(episode, sampling, start)
        return Trajectory(
            trajectory_id=str(UUID(int=randomness.getrandbits(128), version=4)),
            session_id=session_id,
            agent_id=self.agent_id,
            start_timestamp=start,
            end_timestamp=start + timedelta(seconds=self.seconds_per_turn * len(turns)),
            turns=turns,
            task_context=TaskContext.model_validate(
                {
                    **task_context(self.world, task, episode.messages),
                    "task_status": "success" if episode.success else "failed",
                }
            ),
            metadata=self._metadata(sampling),
        )

    def _turns(self, episode: Episode, sampling: Sequence[Sampling], start: datetime) -> list[Turn]:
        shown, acted = episode.messages[0::2], episode.messages[1::2]
        turns = []
        for place, outcome in enumerate(episode.outcomes):
            action = acted[place]["content"]
            turns.append(
                Turn(
                    turn_id=place + 1,
                    timestamp=start + timedelta(seconds=self.seconds_per_turn * place),
                    observation=Observation(
                        type="tool_result" if place else "user_message", content=shown[place]["content"]
                    ),
                    action=Action(
                        type="tool_call",
                        tool_name=self.world.name,
                        tool_args={"command": action.strip()},
                        raw_response=action,
                    ),
                    result=Result(
                        success=outcome.accepted,
                        output=outcome.observation,
                        error=None if outcome.accepted else outcome.observation,
                        execution_time_ms=self.seconds_per_turn * 1000,
                    ),
                    sampling=sampling[place] if sampling else None,
                )
            )
        return turns

    def _metadata(self, sampling: Sequence[Sampling]) -> TrajectoryMetadata:
        read = sum(len(turn.prompt_token_ids or ()) for turn in sampling)
        written = sum(len(turn.completion_token_ids or ()) for turn in sampling)
        return TrajectoryMetadata(
            model=self.model,
            model_version=self.model_version,
            temperature=self.temperature,
            prompt_tokens=read if sampling else None,
            completion_tokens=written if sampling else None,
            total_tokens=read + written if sampling else None,
            framework=self.framework,
        )
