"""The command that shows one trajectory."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer


def show(
    trajectory_id: Annotated[str, typer.Argument(help="The trajectory's id.")],
    html: Annotated[Path | None, typer.Option(help="Write a page to this file; else it is shown here.")] = None,
) -> None:
    """Show a trajectory: its turns, what it earned and why, feedback, and what learnt from it."""
    from rl_pipeline.observability.trace_page import trace_page
    from rl_pipeline.observability.trace_text import trace_text
    from rl_pipeline.observability.traces import trace_of
    from rl_pipeline.opening import current_settings, open_warehouse

    with closing(open_warehouse(current_settings())) as tables:
        trace = trace_of(tables, trajectory_id)
    if html is None:
        typer.echo(trace_text(trace))
        return
    html.write_text(trace_page(trace), encoding="utf-8")
    typer.echo(f"written to {html}")
