"""How many trajectories each domain may have, and how many of them one source or one user."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from math import ceil, floor


def quotas_of(sample_size: int, shares: Mapping[str, float], domains: Collection[str]) -> dict[str, int]:
    """How many trajectories each domain may have; they sum to the sample's size.

    Shares count in proportion to their sum. Without shares every one of `domains` has the same.
    """
    weights = dict(shares) or dict.fromkeys(domains, 1.0)
    if not weights:
        return {}
    return largest_remainder(sample_size, weights)


def largest_remainder(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divide `total` in proportion to the weights (Hamilton's method); ties go to the name that comes first."""
    sum_of_weights = sum(weights.values())
    exact = {name: total * weight / sum_of_weights for name, weight in weights.items()}
    seats = {name: floor(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (seats[name] - exact[name], name))
    for name in by_remainder[: total - sum(seats.values())]:
        seats[name] += 1
    return dict(sorted(seats.items()))


def cap_of(offered: Sequence[int], of_nobody: int, sample_size: int, share: float) -> tuple[int, float]:
    """The most that one holder may have, and the largest share of what is chosen. `offered` is what each holder has.

    Where there are too few holders for the share, it is an equal part of what there is. Where all others together offer
    less than a tenth there is no cap: a few attempts of one more agent must not cost almost all of the others.
    """
    total = of_nobody + sum(offered)
    if not offered or 10 * (total - max(offered)) < total:
        return sample_size, 1.0
    if share * len(offered) < 1:
        return ceil(min(sample_size, total) / len(offered)), 1.0
    return max(1, ceil(sample_size * share)), share


def cap_within(held: Sequence[int], of_nobody: int, share: float) -> int:
    """The most that one holder may keep, so that nobody has more than the share of all that is kept then.

    `held` is what each holder has. Where there are too few for the share, it is an equal part: the only holder may keep
    everything, and of two with half each the larger keeps no more than the smaller has.
    """
    possible = max(share, 1 / max(len(held), 1))

    def is_too_much(cap: int) -> bool:
        return cap > possible * (of_nobody + sum(min(has, cap) for has in held)) + 1e-9

    # What is kept grows ever more slowly with the cap, so that above the first cap that is too much all are.
    caps = range(1, max(held, default=0) + 1)
    return max(1, bisect_left(caps, True, key=is_too_much))
