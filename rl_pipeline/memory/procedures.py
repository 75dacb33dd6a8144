"""What to do: sequences of actions that led to their goal, with how often they did, and how sure that is.

A sequence is the actions that did something, in order; whoever did the same with more failed attempts in between did
the same. The interval is Wilson's, of the share of attempts with this sequence that reached the goal (Wilson, Probable
Inference, 1927): one success of one says from 0.21, thirty of thirty from 0.89.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import sqrt

from rl_pipeline.memory.consolidated import MOST_SOURCES, Consolidated, consolidated_id
from rl_pipeline.memory.episodes import Episode
from rl_pipeline.memory.likeness import goals_alike

_Z = 1.959963984540054


def wilson_interval(successes: int, attempts: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, z2 = successes / attempts, _Z**2
    middle = (share + z2 / (2 * attempts)) / (1 + z2 / attempts)
    half = _Z * sqrt(share * (1 - share) / attempts + z2 / (4 * attempts**2)) / (1 + z2 / attempts)
    return max(0.0, middle - half), min(1.0, middle + half)


def procedures_of(episodes: Sequence[Episode]) -> list[Consolidated]:
    """What worked in the episodes of one type of task, in the order of their ids."""
    made = []
    for group in goals_alike([episode.goal for episode in episodes]):
        about = [episodes[place] for place in group]
        tried: dict[tuple[str, ...], list[Episode]] = defaultdict(list)
        for episode in about:
            tried[effective_actions(episode)].append(episode)
        goal = about[0].goal
        made += [
            _procedure(goal, actions, attempts)
            for actions, attempts in tried.items()
            if actions and any(attempt.succeeded for attempt in attempts)
        ]
    return sorted(made, key=lambda procedure: procedure.id)


def effective_actions(episode: Episode) -> tuple[str, ...]:
    """The actions that did something."""
    return tuple(step.action for step in episode.steps if step.succeeded)


def _procedure(goal: str, actions: tuple[str, ...], attempts: Sequence[Episode]) -> Consolidated:
    successes = sum(attempt.succeeded for attempt in attempts)
    low, high = wilson_interval(successes, len(attempts))
    first = attempts[0]
    return Consolidated(
        id=consolidated_id("procedural", first.task_type, goal, *actions),
        memory_type="procedural",
        task_type=first.task_type,
        domain=first.domain,
        content={
            "goal": goal,
            "actions": list(actions),
            "attempts": len(attempts),
            "successes": successes,
            "success_rate": round(successes / len(attempts), 6),
            "interval": [round(low, 6), round(high, 6)],
            "sources": [attempt.id for attempt in attempts][:MOST_SOURCES],
        },
        searched=(goal, *actions),
        importance=round(low, 4),
        at=max(attempt.at for attempt in attempts),
        sources=tuple(attempt.id for attempt in attempts),
    )
