"""The openings that the online algorithms play on from, as the dataset holds them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from rl_pipeline.training.program.dataset import (
    DatasetUnreadable,
    Message,
    Split,
    UnusableMessages,
    manifest_of,
    parse_messages,
)

PROMPTS = "prompts.parquet"


@dataclass(frozen=True)
class Prompt:
    """A task: what stands before the agent's first action, and where it can be played, if anywhere."""

    task: str
    messages: Sequence[Message]
    environment: str | None = None
    environment_task: Mapping[str, Any] | None = None


def read_prompts(directory: Path, split: Split) -> list[Prompt]:
    """The prompts of the dataset, none if its manifest lists none. Raises `DatasetUnreadable`."""
    if not any(file.name == PROMPTS for file in manifest_of(directory).files):
        return []
    file = directory / PROMPTS
    columns = ["task", "messages", "environment", "environment_task"]
    try:
        rows = pl.scan_parquet(file).filter(pl.col("split") == split).select(columns).collect()
        return [_prompt(*row) for row in rows.iter_rows()]
    except (OSError, ValueError, UnusableMessages, pl.exceptions.PolarsError) as error:
        raise DatasetUnreadable(
            f"{PROMPTS} of the dataset cannot be read ({type(error).__name__}): download it again."
        ) from error


def _prompt(task: str, messages: str, environment: str | None, environment_task: str | None) -> Prompt:
    setup = json.loads(environment_task) if environment_task else None
    if environment is None or not isinstance(setup, dict):
        return Prompt(task, parse_messages(messages))
    return Prompt(task, parse_messages(messages), environment, setup)
