"""How often is a good model rolled back, and how soon is a bad one?

Whole rollouts on a simulated clock, through the judgement and the phases of the product: a canary of 10, 25 and 50 %
over 4 hours at least, with 50, 100 and 150 sessions of the candidate in its steps, then all the traffic for half an
hour, or for the 24 hours of the product where a row is about the bake. Controller and watchdog both look; whoever
decides first, decides. Both models fail in 2 % of their sessions, have rewards of 0.70 with a standard deviation of
0.25, and bad ratings from 10 % of the 15 % of users who rate, unless a row says otherwise. Work takes 10 minutes (the
median; one in ten takes too long to count), but work that fails takes half a minute. Minutes are from the start of the
rollout until the window was closed that made the evidence enough, which is a minute after its end; rewards count 32
minutes after the beginning of their sessions.

Where callers come back, each does 25 times a day under its name, counts until its first failure at a split, and one in
ten fails always; of these rows only errors are followed.

Rows under "plain rule" are the specification's thresholds on windows of five minutes, by the clock alone.

- `false_rollback_max`: the highest share of healthy models that are rolled back, over traffic, whole bakes, bursts of
  errors in ramp and bake, a site that fails one in ten with both, a real share that is half as high again as the
  configured one, callers that come back, and work of both whose failures are known long before its successes; an outage
  of both arms, in the ramp or in the bake, is `outage_rollback`.
- `baked_promoted_min`: the lowest share of healthy models that are promoted through an outage in the bake, bursts, or a
  site that fails for both. `alone_held_min`: the lowest share of those that fail only with all of the traffic for which
  a person is asked.
- `caught_8pct_100k`, `p90_minutes_100k`: a model with 8 % errors at 100,000 sessions a day.
- `returning_bad_promoted_max`: the highest share of models that fail in 30 % from the 50 % step on and are promoted all
  the same, where callers come back and two hours of outage were before.
- `literal_false_rollback`: the lowest share of healthy models that the plain rule rolls back.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))  # for its neighbours, when started as a script

from benchmarks.rollouts import Course, Model, Traffic, simulate_rollout
from rl_pipeline.deployment.state import EvidenceRule

SESSIONS_A_DAY = (1_000, 10_000, 100_000)
HEALTHY, OUTAGE, ERRORS = "healthy", "15-minute outage of both", "8 % errors"
OUT_OF_ORDER = "all fail once all traffic is its own"
BURSTS, REAL_SHARE = "24 bursts of errors a day", "real share 1.5 x configured"
FAST_FAILURES = "20 % of the work fails at once"
BAKED, BAKE_OUTAGE = "healthy, 24 h of bake", "15-minute outage in the bake"
FLAKY, ALONE = "10 % errors of both", "10 % errors with all traffic"
RETURNING, BAD_FOR_RETURNING = "healthy, callers come back", "30 % errors late, callers come back"
WORKING = Model(reward=0.80, spread=0.10, failing=0.20)
"""Its bad work is known long before its good work."""


@dataclass(frozen=True)
class Row:
    """One kind of rollout, and how many of it at full size."""

    name: str
    traffic: Traffic
    rollouts: int
    rule: EvidenceRule = "evidence"


ANY = Traffic(0)
BAKING = Traffic(0, bake_hours=24)
NAMED = Traffic(0, visits_a_day=25, broken_callers=0.1, outage_minutes=120)
ROWS = (
    Row(HEALTHY, ANY, 2_000),
    Row(BAKED, BAKING, 200),
    Row(BURSTS, replace(BAKING, bursts_a_day=24), 400),
    Row(BAKE_OUTAGE, replace(BAKING, outage_in_bake_minutes=15), 400),
    Row(FLAKY, replace(BAKING, candidate=Model(errors=0.10), control=Model(errors=0.10)), 200),
    Row(ALONE, replace(BAKING, candidate=Model(errors=0.10), bad_alone=True), 80),
    Row(REAL_SHARE, replace(ANY, real_share=1.5), 500),
    Row(RETURNING, NAMED, 500),
    Row(BAD_FOR_RETURNING, replace(NAMED, candidate=Model(errors=0.30), bad_from_step=2), 200),
    Row(OUTAGE, replace(ANY, outage_minutes=15), 1_000),
    Row(FAST_FAILURES, replace(ANY, candidate=WORKING, control=WORKING), 500),
    Row(ERRORS, replace(ANY, candidate=Model(errors=0.08)), 500),
    Row("8 % errors from the 50 % step on", replace(ANY, candidate=Model(errors=0.08), bad_from_step=2), 200),
    Row(OUT_OF_ORDER, replace(ANY, candidate=Model(errors=1.0), bad_from_step=3), 200),
    Row("rewards lower by 0.10", replace(ANY, candidate=Model(reward=0.60)), 500),
    Row("40 % of its work fails at once", replace(ANY, candidate=replace(WORKING, failing=0.40), control=WORKING), 500),
    Row("bad ratings three times as often", replace(ANY, candidate=Model(negative=0.30)), 500),
    Row(HEALTHY, ANY, 2_000, "literal"),
    Row(OUTAGE, replace(ANY, outage_minutes=15), 500, "literal"),
    Row(ERRORS, replace(ANY, candidate=Model(errors=0.08)), 500, "literal"),
)


@dataclass(frozen=True)
class Cell:
    """What came of the rollouts of one kind under one traffic."""

    rolled_back: float
    held: float
    """Share of them that waits for a person."""
    minutes: tuple[float, float]
    """Median and 90 % of the rollbacks."""

    @classmethod
    def of(cls, courses: list[Course]) -> "Cell":
        ends = [course.end for course in courses]
        minutes = [course.minutes for course in courses if course.end == "rolled_back"] or [float("nan")]
        median, most = np.quantile(minutes, [0.5, 0.9])
        return cls(ends.count("rolled_back") / len(ends), ends.count("held") / len(ends), (median, most))

    def __str__(self) -> str:
        held = f" +{100 * self.held:.1f}" if self.held else ""
        times = "" if np.isnan(self.minutes[0]) else f" ({self.minutes[0]:.0f}, {self.minutes[1]:.0f})"
        return f"{100 * self.rolled_back:.1f}{held}{times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one of 40 rollouts, some minutes")
    quick = parser.parse_args().quick
    print("rolled back, in %, + waiting for a person (median and 90 % of the minutes until the rollback)\n")
    print(f"{'':<36}{'rollouts':>9}" + "".join(f"{sessions:>20,}/day" for sessions in SESSIONS_A_DAY))
    cells: dict[tuple[str, EvidenceRule, int], Cell] = {}
    with ProcessPoolExecutor() as pool:
        for row in ROWS:
            count = row.rollouts // 40 if quick else row.rollouts
            for sessions in SESSIONS_A_DAY:
                follow = partial(simulate_rollout, replace(row.traffic, sessions_a_day=sessions), rule=row.rule)
                cells[row.name, row.rule, sessions] = Cell.of(list(pool.map(follow, range(count), chunksize=5)))
            name = f"plain rule: {row.name}" if row.rule == "literal" else row.name
            shown = "".join(f"{cells[row.name, row.rule, sessions]!s:>24}" for sessions in SESSIONS_A_DAY)
            print(f"{name:<36}{count:>9,}{shown}", flush=True)
    print()
    print(json.dumps({name: round(value, 4) for name, value in figures(cells).items()}))


def figures(cells: dict[tuple[str, EvidenceRule, int], Cell]) -> dict[str, float]:
    """The figures that have a name."""

    def rolled_back(name: str, rule: EvidenceRule = "evidence") -> list[float]:
        return [cells[name, rule, sessions].rolled_back for sessions in SESSIONS_A_DAY]

    def promoted(name: str) -> list[float]:
        found = [cells[name, "evidence", sessions] for sessions in SESSIONS_A_DAY]
        return [1 - cell.rolled_back - cell.held for cell in found]

    return {
        "false_rollback_max": max(
            rate
            for name in (HEALTHY, BAKED, BURSTS, FLAKY, REAL_SHARE, RETURNING, FAST_FAILURES)
            for rate in rolled_back(name)
        ),
        "caught_8pct_100k": rolled_back(ERRORS)[-1],
        "p90_minutes_100k": cells[ERRORS, "evidence", 100_000].minutes[1],
        "outage_rollback": max(rolled_back(OUTAGE) + rolled_back(BAKE_OUTAGE)),
        "literal_false_rollback": min(rolled_back(HEALTHY, "literal")),
        "caught_8pct_1k": rolled_back(ERRORS)[0],
        "caught_8pct_10k": rolled_back(ERRORS)[1],
        "baked_promoted_min": min(share for name in (BAKE_OUTAGE, BURSTS, FLAKY) for share in promoted(name)),
        "alone_held_min": min(cells[ALONE, "evidence", sessions].held for sessions in SESSIONS_A_DAY),
        "healthy_held_max": max(cells[HEALTHY, "evidence", sessions].held for sessions in SESSIONS_A_DAY),
        "returning_bad_promoted_max": max(promoted(BAD_FOR_RETURNING)),
        "literal_outage_rollback": min(rolled_back(OUTAGE, "literal")),
    }


if __name__ == "__main__":
    main()
