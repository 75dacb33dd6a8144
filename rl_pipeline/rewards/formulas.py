"""The formulas of the built-in terms for one trajectory, in plain Python.

They are the definition: the batch terms compute the same for a million rows, and a test compares the two row by row.
None means "does not apply". How a text is measured is in `answer_text.py`, whose functions are offered here too.
"""

from collections.abc import Sequence
from math import log1p
from typing import NamedTuple

from rl_pipeline.rewards.answer_text import answer_depth, answer_similarity, answer_structure

__all__ = [
    "Usual",
    "answer_depth",
    "answer_quality",
    "answer_similarity",
    "answer_structure",
    "code_quality",
    "coordination",
    "efficiency",
    "lint_of_snippets",
    "outcome",
    "restart_decision",
    "run_efficiency",
    "task_completion",
    "tool_execution",
    "user_feedback",
    "vote",
    "voting",
]

ROUND_PENALTY_CAP = -1.0
"""Reached at 13 rounds: without it the range of coordination would have no lower end."""

NOT_DONE = ("failed", "abandoned")
"""How a task ended whose turns, time and tokens bought nothing."""

_TWENTIETHS = 20
"""Opinions are added as whole twentieths (a star is 4 or 5 of them), so their order cannot change the sum."""


def task_completion(status: str, completion: float | None) -> float:
    """1 for success, `0.5 + 0.5 · completion` for a part of the task, else 0. `completion` is a share."""
    if status == "success":
        return 1.0
    if status == "partial":
        return 0.5 + 0.5 * (completion or 0.0)
    return 0.0


def outcome(
    status: str,
    completion: float | None,
    *,
    subtasks: int = 0,
    subtasks_done: float = 0.0,
    failed_calls: int = 0,
    distinct_calls: int = 0,
    error_weight: float = 0.1,
) -> float | None:
    """`task_completion`, held against the subtasks and the calls.

    A success with unfinished subtasks is a part of the task. A success loses `error_weight` times the share of its
    calls that never succeeded. Without a status the subtasks decide, and without subtasks nothing does.
    """
    done = min(1.0, subtasks_done / subtasks) if subtasks else None
    if status == "":
        return done
    if status == "partial" and completion is None:
        completion = done
    if status == "success" and done is not None and done < 1.0:
        score = task_completion("partial", done)
    else:
        score = task_completion(status, completion)
    if status == "success" and distinct_calls:
        score -= error_weight * min(1.0, failed_calls / distinct_calls)
    return score


def efficiency(turns: float, mean: float, std: float) -> float:
    """`z = (mean - turns) / std`, held within ±2, as `(z + 2) / 4`. Without spread: 0.5 at the mean, else the side."""
    if std == 0.0:
        return 0.5 if turns == mean else float(turns < mean)
    z = min(2.0, max(-2.0, (mean - turns) / std))
    return (z + 2.0) / 4.0


class Usual(NamedTuple):
    """What trajectories of a task type usually take; None while too few are known."""

    turns: float | None = None
    turns_std: float | None = None
    log_seconds: float | None = None
    log_seconds_std: float | None = None
    log_tokens: float | None = None
    log_tokens_std: float | None = None


def run_efficiency(
    turns: int,
    seconds: float,
    tokens: int | None,
    usual: Usual,
    *,
    status: str = "",
    calls: int = 0,
    redundant_calls: int = 0,
) -> float | None:
    """The mean efficiency of turns, `log(1 + seconds)` and `log(1 + tokens)`, times the share of useful calls.

    Zero seconds or tokens were not measured. What has no baseline does not count; without any there is no score. A task
    that was not done has 0: else giving up at once would be worth more than trying.
    """
    measured = (
        (float(turns), usual.turns, usual.turns_std),
        (log1p(seconds) if seconds > 0 else None, usual.log_seconds, usual.log_seconds_std),
        (log1p(tokens) if tokens else None, usual.log_tokens, usual.log_tokens_std),
    )
    parts = [
        efficiency(value, mean, std)
        for value, mean, std in measured
        if value is not None and mean is not None and std is not None
    ]
    if not parts:
        return None
    if status in NOT_DONE:
        return 0.0
    useful = 1.0 - min(1.0, redundant_calls / calls) if calls else 1.0
    return sum(parts) / len(parts) * useful


def code_quality(
    lint: float | None, pass_rate: float | None, critical: int | None, *, has_code: bool = True
) -> float | None:
    """The mean of `lint / 10`, the pass rate of the tests and `max(0, 1 - 0.5 · critical)`, as far as known.

    Code of which nothing is known is worth 0.5; without code the term does not apply.
    """
    if not has_code:
        return None
    parts = []
    if lint is not None:
        parts.append(lint / 10.0)
    if pass_rate is not None:
        parts.append(pass_rate)
    if critical is not None:
        parts.append(max(0.0, 1.0 - 0.5 * critical))
    return sum(parts) / len(parts) if parts else 0.5


def lint_of_snippets(lint: float | None, snippets: int, unparsable: int) -> float | None:
    """The lint score, 0..10, when snippets that no parser takes count as 0.

    Where nothing was linted, the snippets that parse count as 5: so much is code worth of which nothing is known.
    """
    if unparsable == 0 or snippets == 0:
        return lint
    return (5.0 if lint is None else lint) * (1.0 - min(1.0, unparsable / snippets))


def user_feedback(
    kinds: Sequence[str],
    ratings: Sequence[int],
    users: Sequence[str],
    *,
    abandoned: bool = False,
    corrections_shown: int = 0,
    stars: str = "literal",
) -> float:
    """Thumbs up 1, down 0, stars `rating / 5` (or, centred, `(rating - 1) / 4`), correction 0.2, abandoned 0, none 0.5.

    Of each user the last opinion counts, of people unknown each one, and the score is their mean. What was only shown
    decides where no one said anything: the worst of it.
    """
    opinions: dict[str | int, int] = {}
    for position, (kind, rating, user) in enumerate(zip(kinds, ratings, users, strict=True)):
        if (worth := _opinion(kind, rating, stars)) is not None:
            opinions[user or position] = worth
    if opinions:
        return sum(opinions.values()) / (_TWENTIETHS * len(opinions))
    if abandoned or "abandoned" in kinds:
        return 0.0
    return 0.2 if corrections_shown or "correction" in kinds else 0.5


def _opinion(kind: str, rating: int, stars: str) -> int | None:
    if kind == "stars" and rating:
        return 4 * rating if stars == "literal" else 5 * (rating - 1)
    return {"thumbs_up": _TWENTIETHS, "thumbs_down": 0}.get(kind)


def tool_execution(distinct_calls: int, failed_calls: int, empty_results: int, redundant_calls: int) -> float | None:
    """The mean worth of the calls: useful 1, failed -1, without a result -0.5, a repeat of what is known 0.

    Different calls count once, so retries until one succeeds are one success.
    """
    if distinct_calls == 0:
        return None
    useful = distinct_calls - failed_calls - empty_results
    worth = (useful - failed_calls - 0.5 * empty_results) / (distinct_calls + redundant_calls)
    return min(1.0, max(-1.0, worth))


def answer_quality(structure: float | None, depth: float | None, similarity: float | None) -> float | None:
    """Structure (0..0.3) + depth (0..0.4) + similarity to a reference (0..0.3).

    Without a reference the first two are put on the whole scale (divided by 0.7), as absent terms leave their weight
    to the rest: else no answer without a reference could be worth more than 0.7.
    """
    if structure is None or depth is None:
        return None
    worth = (structure + depth) / 0.7 if similarity is None else structure + depth + similarity
    return min(1.0, max(0.0, worth))


def coordination(
    rounds: int, quality: float, tokens: int | None, *, consensus: bool, token_penalty_cap: float = -1.0
) -> float:
    """2 · quality, +1 for consensus (else -0.5), -0.1 for each round above 3, -0.001 for each token above 10,000.

    A good answer (above 0.7) by consensus in at most 2 rounds has 0.5 more. Both penalties are capped, so the range
    is [-2.5, 3.5]: uncapped, 30,000 tokens alone would cost 20.
    """
    rounds_penalty = max(ROUND_PENALTY_CAP, -0.1 * max(0, rounds - 3))
    token_penalty = max(token_penalty_cap, -0.001 * max(0, (tokens or 0) - 10_000))
    agreement = 1.0 if consensus else -0.5
    bonus = 0.5 if consensus and rounds <= 2 and quality > 0.7 else 0.0
    return 2.0 * quality + agreement + bonus + rounds_penalty + token_penalty


def vote(*, right: bool) -> float:
    """+1 for a vote for what won, else -0.5."""
    return 1.0 if right else -0.5


def voting(votes: int | None, votes_right: int | None) -> float | None:
    """The mean of the votes' worth."""
    if not votes or votes_right is None:
        return None
    right = min(votes, votes_right)
    return (right * vote(right=True) + (votes - right) * vote(right=False)) / votes


def restart_decision(*, restarted: bool, quality_before: float, quality_after: float | None = None) -> float:
    """What the decision to begin again, or not to, was worth.

    Going on: 0.5 where the answer was good (above 0.7), else -0.3. Beginning again: 1 where the answer gained more
    than 0.2, 0.5 where it gained at all, else -0.5; 0 while the new answer is not known.
    """
    if not restarted:
        return 0.5 if quality_before > 0.7 else -0.3
    if quality_after is None:
        return 0.0
    gain = quality_after - quality_before
    if gain > 0.2:
        return 1.0
    return 0.5 if gain > 0.0 else -0.5


def safety_constraint(security_critical: int | None, tests_doubt: str) -> float:
    """0 where it is broken, by critical findings or by failing tests that were changed until they passed; else 1."""
    return 0.0 if security_critical or tests_doubt == "tests were changed after they failed" else 1.0
