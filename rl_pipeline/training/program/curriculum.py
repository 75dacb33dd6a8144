"""Which prompts an iteration plays: those of which most can be learnt as things stand, and now and then any other.

Where all attempts of a group succeed, or none, comparing them teaches nothing. How much there is to learn of a prompt
that is solved with chance p is the variance of its outcome, p(1 - p). What p is, nobody knows: it has a Beta posterior,
whose prior is how often prompts of the same kind were solved, because most prompts are played once or twice. Outcomes
count for less with every iteration: the policy that had them is gone.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

_TRUST_IN_KIND = 4.0
"""How many attempts of its own outweigh what is known of a prompt's kind."""
_KEPT_PER_ITERATION = 0.8


class Curriculum:
    """What is known of each prompt: how often it was played and solved, both discounted.

    `state` is all of it: another curriculum on the same prompts goes on from there.
    """

    def __init__(self, kinds: Sequence[Hashable], *, floor: float) -> None:
        """`kinds` says what each prompt is like; the share `floor` of the choice falls on all prompts alike."""
        self._floor = floor
        _, self._kinds = np.unique([repr(kind) for kind in kinds], return_inverse=True)
        self.state: dict[str, list[float]] = {"played": [0.0] * len(kinds), "solved": [0.0] * len(kinds)}

    def choose(self, count: int, iteration: int, seed: int) -> list[int]:
        """The prompts of an iteration, all different where there are enough."""
        chances = self.learnability()
        chances = self._floor / len(chances) + (1 - self._floor) * chances / chances.sum()
        randomness = np.random.default_rng([seed % 2**63, iteration])
        chosen = randomness.choice(len(chances), count, replace=count > len(chances), p=chances)
        return [int(prompt) for prompt in chosen]

    def learnability(self) -> NDArray[np.float64]:
        """E[p(1 - p)] of each prompt: with the posterior Beta(a, b), ab / ((a + b)(a + b + 1))."""
        played, solved = (np.asarray(self.state[name]) for name in ("played", "solved"))
        of_kind = (1 + np.bincount(self._kinds, solved)) / (2 + np.bincount(self._kinds, played))
        prior = _TRUST_IN_KIND * of_kind[self._kinds]
        successes, failures = prior + solved, _TRUST_IN_KIND - prior + played - solved
        whole = successes + failures
        learnability: NDArray[np.float64] = successes * failures / (whole * (whole + 1))
        return learnability

    def learn(self, prompts: Sequence[int], successes: Sequence[float]) -> None:
        """What an iteration brought: the prompt of each episode, and whether it was solved."""
        played, solved = (_KEPT_PER_ITERATION * np.asarray(self.state[name]) for name in ("played", "solved"))
        np.add.at(played, list(prompts), 1.0)
        np.add.at(solved, list(prompts), list(successes))
        self.state = {"played": played.tolist(), "solved": solved.tolist()}
