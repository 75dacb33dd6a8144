"""Which texts say nearly the same: those whose shared words weigh at least so much of all that either has.

Of goals, words count by how rare they are among them: the words that all share say nothing, and two goals in the same
phrase are two goals. Of statements every word counts alike: two that differ in one word may contradict each other.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import log

from rl_pipeline.memory.words import words_of

ALIKE_GOALS = 0.85
ALIKE_STATEMENTS = 0.6
_MOST_LEADERS = 64
"""So many likely ones are compared with."""


def goals_alike(goals: Sequence[str]) -> list[list[int]]:
    """The places of the goals, those alike together: each joins the first goal that leads a group and is like it.

    The same texts in the same order make the same groups. A group is never a chain: all are like its first.
    """
    words = [frozenset(words_of(goal)) for goal in goals]
    spread = Counter(word for each in set(words) for word in each)
    kinds = len(set(words))
    # Next to nothing for a word that all have, so that a text of such words is still like itself.
    weight = {word: log((1 + kinds / count) / 2) + 1e-3 for word, count in spread.items()}
    return _groups(words, weight, ALIKE_GOALS)


def statements_alike(statements: Sequence[str]) -> list[list[int]]:
    """The same of statements."""
    words = [frozenset(words_of(statement)) for statement in statements]
    return _groups(words, {word: 1.0 for each in words for word in each}, ALIKE_STATEMENTS)


def _groups(words: Sequence[frozenset[str]], weight: dict[str, float], alike: float) -> list[list[int]]:
    whole = {each: sum(weight[word] for word in sorted(each)) for each in set(words)}
    groups: dict[frozenset[str], list[int]] = {}
    leader_of: dict[frozenset[str], frozenset[str]] = {}
    leading: dict[str, list[frozenset[str]]] = defaultdict(list)
    for place, each in enumerate(words):
        if each not in leader_of:
            leader_of[each] = _leader(each, leading, weight, whole, alike)
            if leader_of[each] is each:
                for word in each:
                    leading[word].append(each)
        groups.setdefault(leader_of[each], []).append(place)
    return list(groups.values())


def _leader(
    each: frozenset[str],
    leading: dict[str, list[frozenset[str]]],
    weight: dict[str, float],
    whole: dict[frozenset[str], float],
    alike: float,
) -> frozenset[str]:
    """The leader that it is like, else itself."""
    shared: Counter[frozenset[str]] = Counter()
    # Whoever is alike shares one of the rarest words, which few leaders have.
    for word in sorted(each, key=lambda word: (-weight[word], word)):
        for leader in leading.get(word, ())[:_MOST_LEADERS]:
            shared[leader] += 1
        if len(shared) >= _MOST_LEADERS:
            break
    for leader in sorted(shared, key=lambda found: (-shared[found], sorted(found))):
        common = sum(weight[word] for word in sorted(each & leader))
        if common >= alike * (whole[each] + whole[leader] - common):
            return leader
    return each
