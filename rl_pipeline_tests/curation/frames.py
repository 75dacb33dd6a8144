"""Small frames of candidates, and the criteria that they are chosen by."""

from typing import Any

import polars as pl
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rl_pipeline.contracts.training_request import TrainingRequest
from rl_pipeline.curation.candidates import CANDIDATES
from rl_pipeline.curation.policy import Criteria, CurationPolicy, criteria_of
from rl_pipeline.curation.splits import split

PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For each of the functions."""
PROPERTY_OF_ALL = settings(PROPERTY, max_examples=30)
"""For all of them together, which have properties of their own."""

POLICY = CurationPolicy()
OPEN_POLICY = CurationPolicy(source_share=1.0, user_share=1.0)
"""Without caps that bind."""

_DEFAULTS: dict[str, Any] = {
    "at": 0,
    "source": "agent-zero",
    "user": 0,
    "called": 0,
    "domain": "coding",
    "status": "success",
    "environment": "",
    "setup": 0,
    "reward": 0.5,
    "reward_revision": 0,
    "configuration": "c1",
    "tools": 1,
    "opening_likeness": 0,
    "asked": 10,
    "likeness": 0,
    "written": 20,
}


def candidates(*rows: dict[str, Any]) -> pl.DataFrame:
    """Rows as the warehouse gives them; what is left out is ordinary, and unlike that of any other row."""
    full = []
    for number, row in enumerate(rows):
        name = row.get("trajectory_id", f"t{number:03}")
        distinct = {"trajectory_id": name, "task": f"task of {name}", "opening": 100 + number, "actions": 200 + number}
        one = _DEFAULTS | distinct | {"kernel": 300 + number, "draw": 7919 * number % 1000} | row
        full.append(one | {"raw_total": one["reward"]})
    return pl.DataFrame(full, schema=CANDIDATES)


def told(rows: pl.DataFrame) -> pl.DataFrame:
    """What the documents of these rows tell, if they open and go on with other words where the hashes are others."""
    words = pl.struct("opening", "actions").hash()
    return rows.select(
        "trajectory_id",
        pl.col("environment").cast(pl.String),
        "setup",
        opening_words="opening",
        words=words,
        task_type=pl.lit("type"),
    )


def dealt(rows: pl.DataFrame, share: float = 0.1, seed: int = 0) -> pl.DataFrame:
    """The rows with their `split`."""
    return split(rows.drop("environment", "setup").join(told(rows), on="trajectory_id"), share, seed)


def request(filters: dict[str, Any] | None = None, **dataset: Any) -> TrainingRequest:
    return TrainingRequest.model_validate(
        {
            "training_job_id": "job-1",
            "timestamp": "2026-03-26T00:00:00Z",
            "requester": "tests",
            "trigger_reason": "manual",
            "training_config": {"dataset": {"source": "clickhouse", "filter": filters or {}, **dataset}},
        }
    )


def criteria(
    algorithm: Any = "sft", filters: dict[str, Any] | None = None, policy: CurationPolicy = POLICY, **dataset: Any
) -> Criteria:
    asked = request(filters, **dataset)
    at = asked.timestamp
    return criteria_of(asked, job_id="job-1", accepted_at=at, algorithm=algorithm, watermark=10**9, policy=policy)


DOMAINS = ("coding", "research", "general")
_ROW = st.fixed_dictionaries(
    {
        "at": st.integers(0, 50),
        "source": st.sampled_from(["alpha", "beta", "gamma"]),
        "user": st.integers(0, 3),
        "task": st.sampled_from(["a", "b", "c", "d", "e"]),
        "domain": st.sampled_from(DOMAINS),
        "status": st.sampled_from(["success", "failed"]),
        "reward": st.sampled_from([0.0, 0.1, 0.35, 0.5, 0.72, 0.9, 1.0]),
        "opening": st.integers(1, 3),
        "configuration": st.sampled_from(["c1", "c1", "c2"]),
        "setup": st.sampled_from([0, 7, 8]),
        "asked": st.sampled_from([10, 500]),
        "actions": st.integers(1, 6),
        "kernel": st.integers(1, 3),
        "tools": st.integers(1, 2),
        "written": st.sampled_from([20, 900]),
        "likeness": st.sampled_from([1, 2, 3, 2**20, 2**31 + 2**17 + 255]),
        "opening_likeness": st.sampled_from([4, 5, 2**24 + 2**18 + 15]),
        "draw": st.integers(0, 2**64 - 1),
    }
)


@st.composite
def some_candidates(draw: st.DrawFn, most: int = 40) -> pl.DataFrame:
    """Candidates with few different values, so that much is alike."""
    return candidates(*draw(st.lists(_ROW, max_size=most)))


@st.composite
def shuffled(draw: st.DrawFn, most: int = 40) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The same candidates in two orders."""
    rows = draw(some_candidates(most))
    return rows, rows[draw(st.permutations(range(rows.height)))]
