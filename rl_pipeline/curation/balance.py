"""How many trajectories each domain may have, and how many of them one source or one user."""

from collections.abc import Collection, Mapping
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


def cap_of(sample_size: int, share: float, holders: int) -> int:
    """The most that one holder may have: its share of the sample, or an equal part where there are few holders."""
    return max(1, ceil(sample_size * max(share, 1 / max(holders, 1))))
