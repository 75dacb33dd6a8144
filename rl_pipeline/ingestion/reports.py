"""What an ingest tells of itself: counts by verdict, reason, agent, domain, model and rule, never content."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from rl_pipeline.ingestion.judging import Judgement


@dataclass(frozen=True)
class DrainReport:
    """What was done with the sequences from `first` to `last`."""

    first: int
    last: int
    judged: int = 0
    unchanged: int = 0
    """Sequences that were done before."""
    kept: int = 0
    """Sequences that have left the stream: they could not be read again, and stay as an older revision made them."""
    lost: int = 0
    """Sequences that the stream no longer has and that nobody had ingested."""
    bytes: int = 0
    seconds: float = 0.0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Why messages were refused."""
    agents: Mapping[str, int] = field(default_factory=dict)
    domains: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)
    rules: Mapping[str, int] = field(default_factory=dict)
    """How many values each redaction rule replaced."""

    @classmethod
    def of_nothing(cls) -> Self:
        """The report on no sequences at all."""
        return cls(1, 0)


class Tally:
    """Counts while an ingest runs."""

    def __init__(self) -> None:
        self.lost = 0
        self._bytes = 0
        self._verdicts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._agents: Counter[str] = Counter()
        self._domains: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._rules: Counter[str] = Counter()

    def count(self, judgements: Iterable[Judgement]) -> None:
        """Add what was stored."""
        for judgement in judgements:
            self._bytes += judgement.size
            self._verdicts[judgement.verdict] += 1
            if judgement.verdict == "refused":
                self._reasons[judgement.reason] += 1
            if judgement.trajectory:
                enrichment = judgement.trajectory.enrichment
                self._agents[enrichment.agent_id] += 1
                self._domains[enrichment.domain] += 1
                self._models[enrichment.model] += 1
                self._rules.update(dict(zip(judgement.trajectory.rules, judgement.trajectory.counts, strict=True)))

    def report(self, first: int, last: int, sequences: int, kept: int, seconds: float) -> DrainReport:
        """The report on that many sequences, each of which was counted, or kept, or left unchanged."""
        judged = self._verdicts.total()
        return DrainReport(
            first=first,
            last=last,
            judged=judged,
            unchanged=sequences - judged - self.lost - kept,
            kept=kept,
            lost=self.lost,
            bytes=self._bytes,
            seconds=seconds,
            verdicts=dict(self._verdicts),
            reasons=dict(self._reasons),
            agents=dict(self._agents),
            domains=dict(self._domains),
            models=dict(self._models),
            rules=dict(self._rules),
        )
