"""What an asset does with the run that it is in: begin its attempt, and ask Dagster about it."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.stores.lease import KeptLease, Leases, keep
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.advancing import TRAINING_LEASE
from rl_pipeline.training.jobs.job import Attempt, Job
from rl_pipeline.training.jobs.rows import begin_attempt
from rl_pipeline.training.jobs.silence import LEASE_SECONDS


@contextmanager
def begun_attempt(
    context: dg.AssetExecutionContext, tables: Warehouse, leases: Leases
) -> Iterator[tuple[Job, list[Attempt], KeptLease]]:
    """The job of the run's partition with its attempts, and the lease for the length of the block.

    Whatever a run does for its attempt it does under the lease: one that holds none is taken for lost.
    """
    job, attempts = begin_attempt(
        tables, context.partition_key, context.run.run_id, context.run.tags, datetime.now(UTC)
    )
    with keep(leases, TRAINING_LEASE, owner=attempts[-1].holder, seconds=LEASE_SECONDS) as lease:
        yield job, attempts, lease


def is_canceling(context: dg.AssetExecutionContext) -> bool:
    """Whether somebody cancels the run: a machine that goes down interrupts it without saying so."""
    run = context.instance.get_run_by_id(context.run_id)
    return run is not None and run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
