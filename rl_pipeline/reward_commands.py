"""The commands around rewards: what a re-score would change, and what known tricks gain."""

from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from rl_pipeline.rewards.configuration import RewardConfiguration
    from rl_pipeline.settings import Settings

Configuration = Annotated[
    Path | None, typer.Option(help="The proposed reward configuration, a TOML file; else that of the settings.")
]
Weights = Annotated[
    str | None, typer.Option(help="Proposed weights, as task_completion=0.5,efficiency=0.5; the others are 0.")
]
FromDay = Annotated[datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="The first UTC day.")]
ToDay = Annotated[datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="The last UTC day.")]


class NothingToRescore(PipelineError):
    """There are no rewards to compare with."""


def rescore(  # noqa: PLR0917  # Typer reads its options from here
    plan: Annotated[bool, typer.Option("--plan", help="Show what would change, and write nothing.")] = False,
    configuration: Configuration = None,
    weights: Weights = None,
    min_reward: Annotated[float, typer.Option(min=0, max=1, help="The least raw total of a dataset.")] = 0.5,
    first_day: FromDay = None,
    last_day: ToDay = None,
) -> None:
    """Show who would enter and leave the dataset, and how rewards move, under another reward configuration.

    To carry it out, put the configuration into REWARD_CONFIGURATION_FILE or REWARD_WEIGHT_*, restart, and backfill
    `trajectory_rewards` for those days in the UI: old rewards are kept beside the new ones.
    """
    from rl_pipeline.opening import current_settings, open_warehouse
    from rl_pipeline.rewards.computing import rewards_under
    from rl_pipeline.rewards.rescoring import plan_rescore
    from rl_pipeline.rewards.storing import current_rewards
    from rl_pipeline.stores.topology import TRAJECTORIES

    settings = current_settings()
    proposed = _proposed(settings, configuration, weights)
    if not plan:
        raise PipelineError(
            "use --plan to see what would change; to carry it out, set REWARD_CONFIGURATION_FILE or REWARD_WEIGHT_*, "
            "restart, and backfill trajectory_rewards in the UI"
        )
    days = (first_day.date() if first_day else None, last_day.date() if last_day else None)
    with closing(open_warehouse(settings)) as tables:
        before = current_rewards(tables, TRAJECTORIES.name, *days)
        if before.is_empty():
            raise NothingToRescore("there are no rewards of those days yet: materialize trajectory_rewards first")
        first, last = int(before["sequence"].min()), int(before["sequence"].max())  # type: ignore[arg-type]
        after = rewards_under(tables, stream=TRAJECTORIES.name, first=first, last=last, configuration=proposed)
    newest = after.sort("revision").unique("trajectory_id", keep="last")
    compared = newest.filter(newest["trajectory_id"].is_in(before["trajectory_id"].implode()))
    typer.echo(f"from configuration {before['configuration'][0]} to {proposed.hash}, nothing is written\n")
    typer.echo(plan_rescore(before, compared, min_reward).table())


def probe_rewards(configuration: Configuration = None, weights: Weights = None) -> None:
    """Show how much known tricks (padding, empty tests, repeated calls …) raise the reward without a better outcome."""
    from rl_pipeline.opening import current_settings
    from rl_pipeline.rewards.probes import probe

    typer.echo(probe(_proposed(current_settings(), configuration, weights)).table())


def _proposed(settings: "Settings", file: Path | None, weights: str | None) -> "RewardConfiguration":
    from dataclasses import replace

    from rl_pipeline.rewards.configuration import read_configuration

    found = read_configuration(file or settings.reward_configuration_file, settings.reward_weights)
    return replace(found, weights=_read_weights(weights)) if weights else found


def _read_weights(text: str) -> dict[str, float]:
    try:
        pairs = [pair.split("=") for pair in text.split(",")]
        return {name.strip(): float(weight) for name, weight in pairs}
    except ValueError:
        raise PipelineError("write weights as task_completion=0.5,efficiency=0.5") from None
