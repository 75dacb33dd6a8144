"""What people and checks are told of a curation: how many were offered, kept and left out, and whether all is well."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from rl_pipeline.curation.candidates import Offer
from rl_pipeline.curation.checks import Leakage, missing_domains
from rl_pipeline.curation.policy import Criteria
from rl_pipeline.curation.splits import TRAIN
from rl_pipeline.curation.writing import Written


@dataclass(frozen=True)
class DomainCount:
    """How one domain fared. `shortage` is what is missing to its quota: nothing else was put in its place."""

    quota: int
    offered: int
    kept: int
    shortage: int


@dataclass(frozen=True)
class CapCount:
    """The most that one source or user may have, and what the one with the most has."""

    cap: int
    most: int


@dataclass(frozen=True)
class CurationReport:
    """`offered` is `kept` and all that was left out: every stored trajectory up to the watermark is accounted for."""

    offered: int
    kept: int
    left_out: Mapping[str, int]
    domains: Mapping[str, DomainCount]
    splits: Mapping[str, int]
    tasks: int
    pairs: int
    pairs_across_requests: int
    """Pairs among these that compare different requests, for want of attempts at the same."""
    lacks_pairs: bool
    """Whether the algorithm learns from pairs, and none is left to learn from."""
    prompts: int
    environments: tuple[str, ...]
    """The worlds in which prompts can be played."""
    unplayable: int
    """Prompts that can be played in none."""
    sources: CapCount
    users: CapCount
    lost_to_caps: int
    """How many more there would be without caps."""
    rewards: Mapping[str, Any]
    """configurations, revised (how many count in a later revision), mean, std, least, most."""
    leakage: Leakage
    missing_domains: tuple[str, ...]
    residual: Mapping[str, int]
    """Sensitive values, by kind, in trajectories that were left out for them."""

    def summary(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)


def report_of(offer: Offer, written: Written, criteria: Criteria) -> CurationReport:
    """The report of what was written."""
    choice = written.choice
    rows = choice.rows
    left_out = offer.left_out + choice.left_out
    domains = _domains(written)
    kept = {domain: count.kept for domain, count in domains.items()}
    caps = choice.selection.caps
    return CurationReport(
        offered=rows.height + left_out.total(),
        kept=rows.height,
        left_out=dict(sorted(left_out.items())),
        domains=domains,
        splits={side: rows.filter(pl.col("split") == side).height for side in ("train", "holdout")},
        tasks=rows["task"].n_unique(),
        pairs=choice.pairs.height,
        pairs_across_requests=choice.pairs.filter("across_requests").height,
        lacks_pairs=choice.has_pairs and TRAIN not in choice.pairs["split"],
        prompts=choice.tasks.height,
        environments=tuple(sorted(written.environments.keys() - {""})),
        unplayable=written.environments[""],
        sources=CapCount(caps.source, _most(rows["source"])),
        users=CapCount(caps.user, _most(rows.filter(pl.col("user") != 0)["user"])),
        lost_to_caps=choice.selection.lost_to_caps,
        rewards=_rewards(rows, criteria),
        leakage=written.leakage,
        missing_domains=missing_domains(choice.selection.quotas, kept),
        residual=dict(sorted(written.residual.items())),
    )


def _domains(written: Written) -> dict[str, DomainCount]:
    choice = written.choice
    kept = dict(choice.rows.group_by(pl.col("domain").cast(pl.String)).len().iter_rows())
    quotas = choice.selection.quotas
    return {
        domain: DomainCount(
            quota, choice.offered_by_domain.get(domain, 0), kept.get(domain, 0), quota - kept.get(domain, 0)
        )
        for domain, quota in quotas.items()
    }


def _rewards(rows: pl.DataFrame, criteria: Criteria) -> dict[str, Any]:
    rewards = rows["raw_total"]
    return {
        "configurations": sorted(set(rows["configuration"].cast(pl.String))),
        "revised": rows.filter(pl.col("reward_revision") > 0).height,
        "compared": "normalised" if criteria.normalised else "raw",
        "mean": rewards.mean(),
        "std": rewards.std(ddof=0),
        "least": rewards.min(),
        "most": rewards.max(),
    }


def _most(holders: pl.Series) -> int:
    counts = holders.value_counts()["count"]
    return int(counts.max() or 0)  # type: ignore[arg-type]  # counts are numbers
