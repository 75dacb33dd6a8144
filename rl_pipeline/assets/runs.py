"""What an asset asks Dagster about the run that it is in."""

import dagster as dg


def is_canceling(context: dg.AssetExecutionContext) -> bool:
    """Whether somebody cancels the run: a machine that goes down interrupts it without saying so."""
    run = context.instance.get_run_by_id(context.run_id)
    return run is not None and run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
