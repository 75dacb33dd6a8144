"""What must hold of a dataset before anything learns from it. Pure functions; answers are counts, and 0 is good.

Whether train and holdout are apart is seen in what was written, and by nothing that was used to keep them apart.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

import orjson

from rl_pipeline.curation.files import Row
from rl_pipeline.redaction.residual import residual_findings


@dataclass(frozen=True)
class Leakage:
    """What train and holdout have in common."""

    tasks: int
    """Tasks that are on both sides, by their names or by the setup of their world."""
    openings: int
    """Requests that are on both sides, but for case and spacing, and are not told apart by the setup of a world."""
    near_copies: int
    """Conversations that are on both sides, but for case, spacing and what came of the agent's actions."""

    @property
    def total(self) -> int:
        """0 if nothing leaks."""
        return self.tasks + self.openings + self.near_copies


def leakage(conversations: Iterable[Row]) -> Leakage:
    """What the two sides of a dataset have in common, by the rows of its conversations."""
    names, setups, copies = (defaultdict[Hashable, set[str]](set) for _ in range(3))
    openings: dict[str, dict[str, set[Hashable]]] = defaultdict(lambda: defaultdict(set))
    for row in conversations:
        side = row["split"]
        setup = (row["environment"], row["environment_task"]) if row["environment_task"] else None
        opening, written = _shown_and_written(row["messages"])
        names[row["task"]].add(side)
        copies[opening, written].add(side)
        openings[opening][side].add(setup)
        if setup:
            setups[setup].add(side)
    return Leakage(
        tasks=_on_both_sides(names) + _on_both_sides(setups),
        openings=sum(_is_shared(list(setups_by_side.values())) for setups_by_side in openings.values()),
        near_copies=_on_both_sides(copies),
    )


def _shown_and_written(messages: str) -> tuple[str, str]:
    """What was shown before the agent's first action, and all that it wrote, as texts that can be compared."""
    shown: list[str] = []
    written: list[str] = []
    for message in orjson.loads(messages):
        text = f"{message['content']} {orjson.dumps(message.get('tool_calls') or '').decode()}"
        if message["role"] == "assistant":
            written.append(text)
        elif not written:
            shown.append(text)
    return _plain(shown), _plain(written)


def _plain(texts: list[str]) -> str:
    return "\n".join(" ".join(text.casefold().split()) for text in texts)


def _on_both_sides(sides: Mapping[Hashable, Collection[str]]) -> int:
    return sum(len(found) > 1 for found in sides.values())


def _is_shared(setups: list[set[Hashable]]) -> bool:
    """Whether the setups of two sides do not tell them apart; no setup tells from nothing."""
    return len(setups) > 1 and (None in set.union(*setups) or bool(set.intersection(*setups)))


def missing_domains(quotas: Mapping[str, int], kept: Mapping[str, int]) -> tuple[str, ...]:
    """The domains that should be there and are not."""
    return tuple(sorted(domain for domain, quota in quotas.items() if quota and not kept.get(domain)))


def residual_secrets(
    texts: Iterable[str], allowed: Collection[str] = frozenset(), tolerated: Collection[str] = frozenset()
) -> Counter[str]:
    """How many sensitive values of each kind are left in texts of JSON."""
    found: Counter[str] = Counter()
    for text in texts:
        found.update(residual_findings(text, allowed))
    return Counter({kind: count for kind, count in found.items() if kind not in tolerated})
