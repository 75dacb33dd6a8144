"""Who earned a reward: dividing what a team achieved among its agents.

The value of a coalition S of agents is v(S) = worth · covered(S). Steps are the distinct calls that succeeded and the
final response, each with the agents that achieved it (two agents achieve the same step by the same call with the same
result); covered(S) is the share of the steps that at least one agent of S achieved. Where nothing succeeded, every turn
is a step of the agent that took it; where not even turns are known, every agent has one step.

Credit is the Shapley value of that game: what an agent adds to those before it, on average over all orders. It is the
only division that shares out exactly v(N), treats equals equally, gives nothing to who adds nothing, and is additive
over games (Shapley 1953). In this game it has a closed form, every step shared equally by those who achieved it, which
holds for any number of agents. Difference rewards, what the team would lose without an agent, are the option: every
step goes to who achieved it alone. `shapley` and `sampled_shapley` take any other value function.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rl_pipeline.errors import PipelineError

MOST_ENUMERATED = 12
"""Agents up to which all coalitions are enumerated: 4,096 values, some milliseconds."""

PERMUTATIONS = 2_000
"""Orders that are drawn above that: the standard error is then at most 2.3 % of an agent's largest contribution."""

Coalition = frozenset[str]
CoalitionValue = Callable[[Coalition], float]
"""What a coalition is worth on its own. The empty one is worth 0; otherwise credits share out v(N) - v(∅)."""


class InvalidGame(PipelineError):
    """Credit was asked for among agents or over orders that make no game."""


@dataclass(frozen=True, slots=True)
class Credit:
    """What each agent earned, and how surely: standard errors are 0 unless orders were drawn."""

    method: Literal["closed form", "enumeration", "sampling", "difference"]
    credits: Mapping[str, float]
    standard_errors: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CoverageGame:
    """v(S) = worth · (share of `steps` that an agent of S achieved); a step is the agents that achieved it."""

    worth: float
    steps: tuple[Coalition, ...]

    def __call__(self, coalition: Coalition) -> float:
        """What the coalition is worth."""
        return self.worth * self.covered(coalition)

    def covered(self, coalition: Coalition) -> float:
        """The share of the steps that the coalition achieved on its own."""
        return sum(not step.isdisjoint(coalition) for step in self.steps) / len(self.steps) if self.steps else 0.0

    def shares(self, players: Sequence[str]) -> list[float]:
        """The Shapley value of covered(·) in closed form: Σ 1/|achievers| over the player's steps, over all steps."""
        if not self.steps:
            return [0.0] * len(players)
        parts: dict[str, list[float]] = {player: [] for player in players}
        for step in self.steps:
            for player in step:
                parts[player].append(1 / len(step))
        return [math.fsum(parts[player]) / len(self.steps) for player in players]

    def sole_shares(self, players: Sequence[str]) -> list[float]:
        """The difference rewards of covered(·) in closed form: the share of the steps that nobody else achieved."""
        alone = Counter(player for step in self.steps if len(step) == 1 for player in step)
        return [alone[player] / len(self.steps) if self.steps else 0.0 for player in players]


def coverage_game(
    worth: float, agents: Sequence[str], steps: Sequence[Collection[str]], turn_agents: Sequence[str] = ()
) -> CoverageGame:
    """The game of a trajectory, with the stand-ins for steps where nothing succeeded.

    Only `agents` play: others are taken out of the steps, and steps that none of the agents achieved count for nobody.
    """
    players = _players(agents)
    for candidates in (steps, [[agent] for agent in turn_agents], [[agent] for agent in players]):
        achieved = tuple(ours for step in candidates if (ours := players.intersection(step)))
        if achieved:
            return CoverageGame(worth, achieved)
    return CoverageGame(worth, ())


def assign_credit(
    agents: Sequence[str],
    value: CoalitionValue,
    *,
    method: Literal["shapley", "difference"] = "shapley",
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Credit:
    """Divide `value` among `agents` by the most exact way there is.

    Shapley values come in closed form for a `CoverageGame`, by enumeration for up to 12 agents, else by sampling.
    Difference rewards cost one value per agent and do not add up to the whole.
    """
    none = dict.fromkeys(agents, 0.0)
    if method == "difference":
        return Credit("difference", difference_rewards(agents, value), none)
    if isinstance(value, CoverageGame):
        _players(agents)
        shares = value.shares(agents)
        earned = {agent: value.worth * share for agent, share in zip(agents, shares, strict=True)}
        return Credit("closed form", earned, none)
    if len(agents) <= MOST_ENUMERATED:
        return Credit("enumeration", shapley(agents, value), none)
    return sampled_shapley(agents, value, permutations, seed)


def shapley(players: Sequence[str], value: CoalitionValue) -> dict[str, float]:
    """The exact Shapley value: φ_i = Σ_S |S|!(n-|S|-1)!/n! · (v(S with i) - v(S)) over the coalitions S without i.

    Coalitions are bit masks, each valued once: 2^n values, so at most 12 players. Sums are correctly rounded, so equal
    players get equal bits whatever the order of `players`.
    """
    _players(players)
    count = len(players)
    if count > MOST_ENUMERATED:
        raise InvalidGame(
            f"{count} players have {2**count} coalitions: use sampled_shapley for more than {MOST_ENUMERATED}."
        )
    coalitions: list[Coalition] = [frozenset()]
    for player in players:
        coalitions += [coalition | {player} for coalition in coalitions]
    values = [value(coalition) for coalition in coalitions]
    weights = [1 / (count * math.comb(count - 1, size)) for size in range(count)]

    def worth_of(bit: int) -> float:
        return math.fsum(
            weights[mask.bit_count()] * (values[mask | bit] - values[mask])
            for mask in range(len(values))
            if not mask & bit
        )

    return {player: worth_of(1 << place) for place, player in enumerate(players)}


def sampled_shapley(players: Sequence[str], value: CoalitionValue, permutations: int, seed: int) -> Credit:
    """The Shapley value estimated from seeded random orders, with the standard error of each estimate.

    In every order an agent is credited with what it adds to those before it, so the estimates share out v(N) too
    (Castro, Gómez and Tejada 2009). The same players, in any order, and the same seed give the same bits: orders come
    from `Random.random`, the one sequence that Python keeps between versions.
    """
    if permutations < 2:
        raise InvalidGame("A standard error needs two orders or more: raise `permutations`.")
    names = sorted(_players(players))
    chance = random.Random(seed)  # noqa: S311 - drawing orders is no secret, repeating them is the point
    added: dict[str, list[float]] = {name: [] for name in names}
    nobody = value(frozenset())
    for _ in range(permutations):
        coalition: Coalition = frozenset()
        before = nobody
        for name in sorted(names, key=lambda _: chance.random()):
            coalition |= {name}
            after = value(coalition)
            added[name].append(after - before)
            before = after
    means = {player: math.fsum(added[player]) / permutations for player in players}
    errors = {player: _standard_error(added[player], means[player]) for player in players}
    return Credit("sampling", means, errors)


def difference_rewards(players: Sequence[str], value: CoalitionValue) -> dict[str, float]:
    """What the team would lose without each agent: D_i = v(N) - v(N \\ {i}) (Wolpert and Tumer 2002).

    Every agent that raises its own D_i raises v(N), but they do not add up to v(N): a step that two agents achieved is
    credited to neither.
    """
    everyone = _players(players)
    together = value(everyone)
    return {player: together - value(everyone - {player}) for player in players}


def _standard_error(sample: Sequence[float], mean: float) -> float:
    count = len(sample)
    return math.sqrt(math.fsum((entry - mean) ** 2 for entry in sample) / (count - 1) / count)


def _players(agents: Sequence[str]) -> Coalition:
    players = frozenset(agents)
    if len(players) < len(agents):
        raise InvalidGame("An agent is named twice: name every agent once.")
    return players
