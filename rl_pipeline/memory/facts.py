"""What was learnt of what happened: episodes with the same goal, merged into what they agree on and what they do not.

A fact is a statement, how many episodes bear it out, and the statements that contradict it, with theirs. Nothing is
averaged away: whoever reads it sees that seven of nine came to this and two to that.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rl_pipeline.memory.consolidated import MOST_SOURCES, Consolidated, consolidated_id
from rl_pipeline.memory.episodes import Episode
from rl_pipeline.memory.likeness import goals_alike, statements_alike
from rl_pipeline.memory.words import words_of

_MOST_CONTRADICTIONS = 8


@dataclass(frozen=True, slots=True)
class Claim:
    """One memory's word for something."""

    memory_id: str
    statement: str
    at: datetime
    succeeded: bool | None = None
    """Of an episode: whether its task was done."""


def facts_of(episodes: Sequence[Episode]) -> list[Consolidated]:
    """The facts of the episodes of one type of task, in the order of their ids.

    `episodes` are in the order of the stream, which decides between equals.
    """
    made = []
    for group in goals_alike([episode.goal for episode in episodes]):
        about = [episodes[place] for place in group]
        goal = about[0].goal
        claims = [Claim(each.id, _told(each), each.at, each.succeeded) for each in about]
        content = {"goal": goal, **_agreed(claims)}
        done = sum(each.succeeded for each in about)
        content |= {"episodes": len(about), "succeeded": done, "mean_reward": _mean([each.reward for each in about])}
        made.append(_fact(about[0].task_type, about[0].domain, content, claims, goal))
    return sorted(made, key=lambda fact: fact.id)


def merged_statements(task_type: str, domain: str, claims: Sequence[Claim]) -> list[Consolidated]:
    """What was told as facts, those that say nearly the same as one."""
    made = []
    for group in statements_alike([claim.statement for claim in claims]):
        about = [claims[place] for place in group]
        made.append(_fact(task_type, domain, _agreed(about), about, ""))
    return sorted(made, key=lambda fact: fact.id)


def _fact(task_type: str, domain: str, content: Mapping[str, Any], claims: Sequence[Claim], goal: str) -> Consolidated:
    borne_out = content["support"] / len(claims)
    known = 1 - 0.5 ** len(claims)
    return Consolidated(
        id=consolidated_id("semantic", task_type, goal or claims[0].statement),
        memory_type="semantic",
        task_type=task_type,
        domain=domain,
        content={**content, "sources": [claim.memory_id for claim in claims][:MOST_SOURCES]},
        searched=tuple(filter(None, (goal, str(content["statement"])))),
        importance=round(borne_out * known, 4),
        at=max(claim.at for claim in claims),
        sources=tuple(claim.memory_id for claim in claims),
    )


def _agreed(claims: Sequence[Claim]) -> dict[str, Any]:
    """The statement that most bear out, its support, and those that contradict it.

    Who says the same in other words of the same roots, supports it.
    """
    said: dict[tuple[object, ...], list[Claim]] = defaultdict(list)
    for claim in claims:
        said[claim.succeeded, *words_of(claim.statement)].append(claim)
    first, *others = sorted(said.values(), key=lambda same: -len(same))
    contradictions = [{"statement": same[0].statement, "support": len(same)} for same in others]
    return {
        "statement": first[0].statement,
        "support": len(first),
        "contradictions": contradictions[:_MOST_CONTRADICTIONS],
        "contradicting": len(claims) - len(first),
    }


def _told(episode: Episode) -> str:
    end = f": {episode.outcome}" if episode.outcome else ""
    return f"{'it was done' if episode.succeeded else 'it failed'}{end}"


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 6)
