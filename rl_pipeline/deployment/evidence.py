"""How strongly the windows of a rollout speak against its candidate: e-processes, which may be looked at at any time.

An e-process starts at 1 and, if the candidate is no worse than the control, its mean is at most 1 at every moment (it
is a non-negative supermartingale). By Ville's inequality it then ever reaches 20 with a probability of at most 1/20,
however often and whenever somebody looks. A weighted average of e-processes is one again.

**Strata.** The arms are compared within strata: consecutive windows of one step and one configured share, joined until
`LEAST_EXPECTED` of their sessions are to be expected in the smaller arm. Where a stratum ends depends on the sessions
of both arms together and on the configured share, never on which arm a session went to or what came of it. So, if the
models are alike, every division of a stratum's sessions into two arms of these sizes is as likely as any other,
whatever the weather was: an outage of everything is no evidence, nor is a real share that is not the configured one.
Without the joining, a rollout with a session every ten seconds would hardly ever see both arms in one window.

**Starts.** Healthy hours drive evidence far below 1, and a candidate that then breaks would first have to earn all of
that back. So each test is begun anew at every stratum, and the tests are averaged. One that has not begun is at 1, and
an e-process too, so the average is one. Half of the weight is on the test of everything, the other half on later
ones; how much of it is left after how many sessions was fixed before anything was seen (`_weights_to_come`), and does
not depend on how long a rollout lasts. A fault thus takes more sessions the later it begins, but only by the logarithm
of how many were before. Where the evidence comes from is told too: a fault of today is little among all of last week.

Every function gives the path of its e-process, one value a window. The path of some windows is how the path of those
and all later ones begins.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rl_pipeline.deployment.columns import Columns, Flags, Floats, Integers, sums_by
from rl_pipeline.deployment.limits import Metric

RATIOS = (2.0, 3.0, 4.0, 6.0, 10.0, 25.0)
"""How many times as often the candidate may fail: the alternatives that counts are tested for."""
STAKES = (0.2, 0.5, 0.9)
"""Shares of the wealth that are bet on a lower reward."""
EXCESSES = (0.05, 0.1, 0.2, 0.4)
"""Where between the limit and 1 the error rate may be: the alternatives that an absolute limit is tested for."""
LEAST_EXPECTED = 3.0
"""Sessions that the smaller arm of a stratum has at least, on average."""
RATIO_PRIOR = 100.0
"""How many sessions the configured share is worth to the test of the sample ratio."""

LATER_STARTS = 500.0
"""After 1.7 times as many sessions half of the weight of later starts is used."""

MOST_OF_A_MINUTE = math.log(20) / 2
"""The logarithm of what a minute may count for at most where bursts are to be no evidence: half of what an e-value of
20 takes."""

_HIGHEST_LOG = 600.0
"""An e-value is reported up to this logarithm; beyond it would be no finite number."""


@dataclass(frozen=True, slots=True)
class EvidencePath:
    """An e-process at every window, and where its evidence comes from."""

    values: Floats
    since: Integers
    """The place of the window since which the candidate is to be looked at, by what was known at each window: when the
    e-process was highest up to then, half of its wealth was of tests that had begun by this one."""


@dataclass(frozen=True, slots=True)
class Strata:
    """Consecutive windows that are compared as one, by the places of their first and last windows."""

    first: Integers
    last: Integers

    @classmethod
    def of(cls, columns: Columns, counted: Integers) -> "Strata":
        """Join windows until they have enough of what is `counted` in both arms; an unfinished one is left out.

        Windows with nothing of it are passed over: between those of one step may be some with what was earned at the
        step before.
        """
        places = np.flatnonzero(counted)
        step, share = columns.step[places], columns.share[places]
        expected = (counted[places] * np.minimum(share, 1 - share)).tolist()
        changes = ((np.diff(step) != 0) | (np.diff(share) != 0)).tolist()
        first, last = [], []
        begin, sum_of_stratum = None, 0.0
        for place, more, changed in zip(places.tolist(), expected, [False, *changes], strict=False):
            if begin is None or changed:
                begin, sum_of_stratum = place, 0.0
            sum_of_stratum += more
            if sum_of_stratum >= LEAST_EXPECTED:
                first.append(begin)
                last.append(place)
                begin = None
        return cls(np.array(first, np.int64), np.array(last, np.int64))

    def sums(self, values: Integers) -> Integers:
        """Of each stratum's windows."""
        before = np.concatenate([[0], np.cumsum(values)])
        sums: Integers = before[self.last + 1] - before[self.first]
        return sums

    def path(self, logs: Floats, counted: Integers) -> EvidencePath:
        """The mean of several e-processes, each averaged over its starts; `logs` has a row for each stratum and a
        column for each, with all strata up to there.

        A test that begins at stratum j is at exp(L_t - L_j) later, where L_j is the logarithm before that stratum. So
        the tests that have begun come to exp(L_t) · Σ w_j exp(-L_j): the sum grows by one term a stratum.
        """
        windows = len(counted)
        if not len(self.first):
            return EvidencePath(np.ones(windows), np.zeros(windows, np.int64))
        to_come = _weights_to_come((np.cumsum(counted) - counted)[self.first])
        weights = -np.diff(to_come, prepend=1.0)
        before = np.concatenate([np.zeros((1, logs.shape[1])), logs[:-1]])
        begun = np.logaddexp.accumulate(np.log(weights)[:, None] - before, axis=0)
        wealth = logs + begun
        values = np.exp(np.minimum(wealth, _HIGHEST_LOG)).mean(axis=1) + to_come
        half = np.stack([np.searchsorted(each, each - math.log(2)) for each in begun.T], axis=1)
        strata = np.arange(len(values))
        start = half[strata, wealth.argmax(axis=1)]
        highest = np.maximum.accumulate(np.where(values >= np.maximum.accumulate(values), strata, 0))
        finished = np.searchsorted(self.last, np.arange(windows), side="right")
        return EvidencePath(
            np.concatenate([[1.0], values])[finished], np.concatenate([[0], self.first[start][highest]])[finished]
        )


def _weights_to_come(sessions: Integers) -> Floats:
    """How much weight is on tests that begin later than after so many sessions. It falls slowly, and never to 0."""
    to_come: Floats = 0.5 / (1 + np.log1p(sessions / LATER_STARTS))
    return to_come


def errors_path(columns: Columns) -> EvidencePath:
    """Evidence that sessions fail more often with the candidate. See `_more_often`."""
    candidate, control = columns.candidate, columns.control
    counted = candidate.sessions + control.sessions
    strata = Strata.of(columns, counted)
    e, n, f, m = map(strata.sums, (candidate.errors, candidate.sessions, control.errors, control.sessions))
    return strata.path(np.cumsum(_more_often(e, n, f, m), axis=0), counted)


def feedback_path(columns: Columns) -> EvidencePath:
    """Evidence that rated sessions are rated badly more often with the candidate, or well more often with the control.

    Half of the tests are of each: where most users complain already, the candidate cannot have twice as many who do,
    but it can have half as many who praise. See `_more_often`.
    """
    candidate, control = columns.candidate, columns.control
    counted = candidate.rated + control.rated
    strata = Strata.of(columns, counted)
    e, n, f, m = map(strata.sums, (candidate.negative, candidate.rated, control.negative, control.rated))
    logs = np.hstack([_more_often(e, n, f, m), _more_often(m - f, m, n - e, n)])
    return strata.path(np.cumsum(logs, axis=0), counted)


def _more_often(hits: Integers, of: Integers, other_hits: Integers, other_of: Integers) -> Floats:
    """For each stratum and each r of `RATIOS` the logarithm of r^e / (1 + s(r - 1))^(e + f), where e and f are the hits
    of one arm and of the other, and s is the share of the stratum that the one was observed to have.

    Given a stratum's sessions and its hits, those of one arm are drawn without replacement if the models are alike. The
    mean of a convex function of such a draw is at most that of one with replacement (Hoeffding, 1963), which for r^e is
    (1 + s(r - 1))^(e + f): no factor has a mean above 1. Where one arm has nothing, the factor is 1.
    """
    share = (of / np.maximum(of + other_of, 1))[:, None]
    ratios = np.array(RATIOS)
    logs: Floats = hits[:, None] * np.log(ratios) - (hits + other_hits)[:, None] * np.log1p(share * (ratios - 1))
    return logs


def reward_path(columns: Columns) -> EvidencePath:
    """Evidence that the candidate's mean reward is lower: the wealth Π(1 + λD) of bets on it, averaged over `STAKES`.

    Within a stratum the rewards of the arm that has more are cut, in their order, into as many blocks of nearly one
    size as the other arm has rewards; each makes a pair, and D is the control's mean less the candidate's. No reward is
    used twice and D is within [-1, 1], so the wealth stays positive, and its mean does not grow unless the candidate's
    mean reward is the lower one.
    """
    candidate, control = columns.candidate, columns.control
    counted = candidate.rewarded + control.rewarded
    strata = Strata.of(columns, counted)
    of_candidate, of_control = strata.sums(candidate.rewarded), strata.sums(control.rewarded)
    pairs = np.minimum(of_candidate, of_control)
    lower = _means_of_blocks(control.rewards, control.rewarded, strata, pairs) - _means_of_blocks(
        candidate.rewards, candidate.rewarded, strata, pairs
    )
    bets = np.log1p(lower[:, None] * np.array(STAKES))
    wealth = np.concatenate([np.zeros((1, len(STAKES))), np.cumsum(bets, axis=0)])
    return strata.path(wealth[np.cumsum(pairs)], counted)


def _means_of_blocks(rewards: Floats, rewarded: Integers, strata: Strata, blocks: Integers) -> Floats:
    """The means of one arm's rewards when those of each stratum are cut into its number of blocks, in their order."""
    before = np.concatenate([[0], np.cumsum(rewarded)])
    begins, counts = before[strata.first], strata.sums(rewarded)
    used = np.where(blocks > 0, counts, 0)
    stratum = np.repeat(np.arange(len(used)), used)
    place = np.arange(used.sum()) - np.repeat(np.cumsum(used) - used, used)
    block = (np.cumsum(blocks) - blocks)[stratum] + place * blocks[stratum] // counts[stratum]
    total = int(blocks.sum())
    means: Floats = sums_by(block, rewards[begins[stratum] + place], total) / np.bincount(block, minlength=total)
    return means


def combined(paths: Mapping[Metric, Floats], weights: Mapping[Metric, float]) -> Floats:
    """The weighted average of e-processes, with weights that were fixed before anything was seen.

    What they lack to 1 is the weight of what is not measured: its e-value is 1.
    """
    rest = 1 - sum(weights.values())
    average: Floats = rest + np.sum([weight * paths[metric] for metric, weight in weights.items()], axis=0)
    return average


def limit_path(errors: Integers, sessions: Integers, limit: float) -> EvidencePath:
    """Evidence that sessions fail more often than the limit, without a control: each window is a stratum.

    The likelihood of a higher rate over that of the limit, averaged over `EXCESSES`: a session's factor has a mean of
    at most 1 wherever the rate is at or below the limit. It cannot tell the model from the weather.
    """
    places = np.flatnonzero(sessions)
    gains = _gains(errors[places], sessions[places], limit)
    return Strata(places, places).path(np.cumsum(gains, axis=0), sessions)


def lasting_limit_path(start: Floats, errors: Integers, sessions: Integers, limit: float) -> EvidencePath:
    """`limit_path` by minutes, none of which counts for more than `MOST_OF_A_MINUTE`: a burst is no evidence.

    A factor that is cut off at the top has no higher mean. A minute counts once the first window after it is there.
    """
    places = np.flatnonzero(sessions)
    begins = np.flatnonzero(np.diff(start[places] // 60, prepend=-1.0))
    of_minute = [np.diff(np.concatenate([[0], np.cumsum(each[places])])[begins]) for each in (errors, sessions)]
    gains = _gains(of_minute[0], of_minute[1], limit)
    logs = np.cumsum(np.minimum(gains, MOST_OF_A_MINUTE), axis=0)
    return Strata(places[begins[:-1]], places[begins[1:]]).path(logs, sessions)


def _gains(errors: Integers, sessions: Integers, limit: float) -> Floats:
    """The logarithms of what the sessions of each stratum multiply the tests of each of `EXCESSES` by."""
    rates = limit + (1 - limit) * np.array(EXCESSES)
    gains: Floats = errors[:, None] * np.log(rates / limit) + (sessions - errors)[:, None] * np.log(
        (1 - rates) / (1 - limit)
    )
    return gains


def sample_ratio_path(columns: Columns) -> Floats:
    """Evidence that the traffic is not split as it is configured.

    In each stretch of one share, the Beta-binomial likelihood of the candidate's sessions, with a prior around the
    configured share, over the binomial one; the stretches are multiplied (after Lindon and Malek, 2022).
    """
    if not len(columns):
        return np.empty(0)
    stretch = np.concatenate([[0], np.cumsum(np.diff(columns.share) != 0)])
    begins = np.flatnonzero(np.diff(stretch, prepend=-1))
    candidate, n = columns.candidate.sessions, columns.sessions
    before_candidate, before = ((np.cumsum(each) - each)[begins][stretch] for each in (candidate, n))
    logs = _ratio_logs(np.cumsum(candidate) - before_candidate, np.cumsum(n) - before, columns.share)
    ends = np.append(begins[1:] - 1, len(columns) - 1)
    finished = np.concatenate([[0.0], np.cumsum(logs[ends])[:-1]])
    path: Floats = np.exp(np.minimum(logs + finished[stretch], _HIGHEST_LOG))
    return path


def is_lately_split_as_configured(columns: Columns, sessions: int) -> Flags:
    """At which windows the last so many sessions, all under one share, speak for the configured split by themselves."""
    candidate, total = (
        np.concatenate([[0], np.cumsum(each)]) for each in (columns.candidate.sessions, columns.sessions)
    )
    begins = np.maximum(np.searchsorted(total, total[1:] - sessions, side="right") - 1, 0)
    hits, trials = candidate[1:] - candidate[begins], total[1:] - total[begins]
    changes = np.concatenate([[0], np.cumsum(np.diff(columns.share) != 0)])[: len(columns)]
    is_enough = (trials >= sessions) & (changes[begins] == changes)
    is_right: Flags = is_enough & (_ratio_logs(hits, trials, columns.share) < 0)
    return is_right


def _ratio_logs(hits: Integers, trials: Integers, share: Floats) -> Floats:
    """The logarithm of the Beta-binomial likelihood of the candidate's sessions over the binomial one."""
    a, b = RATIO_PRIOR * share, RATIO_PRIOR * (1 - share)
    logs: Floats = _log_beta(a + hits, b + trials - hits) - _log_beta(a, b)
    return logs - hits * np.log(share) - (trials - hits) * np.log1p(-share)


def _log_beta(a: Floats, b: Floats) -> Floats:
    logs: Floats = _log_gamma(a) + _log_gamma(b) - _log_gamma(a + b)
    return logs


def _log_gamma(values: Floats) -> Floats:
    return np.fromiter(map(math.lgamma, values.tolist()), np.float64, len(values))
