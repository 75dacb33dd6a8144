"""The dataset's files, read row by row into what is trained on. A row that cannot be read is named, not skipped."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import polars as pl

from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.curation.manifest import MANIFEST, Manifest, ManifestUnreadable, read_manifest
from rl_pipeline.errors import PipelineError

CONVERSATIONS, PAIRS = "conversations.parquet", "pairs.parquet"
ROLES = ("system", "user", "assistant", "tool")

Split = Literal["train", "holdout"]
Message = Mapping[str, Any]
_Row = TypeVar("_Row")
_Made = TypeVar("_Made")


class UnreadableRows(PipelineError):
    """Rows that cannot be trained on; `trajectory_ids` says whose they are."""

    code: ClassVar[FailureCode] = "DATA"

    def __init__(self, reason: str, trajectory_ids: Iterable[str]) -> None:
        self.trajectory_ids = tuple(dict.fromkeys(trajectory_ids))
        super().__init__(f"{len(self.trajectory_ids)} trajectories cannot be trained on ({reason}): quarantine them.")


class NothingToLearn(PipelineError):
    """The dataset holds no row for what was asked of it."""

    code: ClassVar[FailureCode] = "DATA"


class DatasetUnreadable(PipelineError):
    """A file of the dataset is missing or is not what its manifest says."""

    code: ClassVar[FailureCode] = "INFRA"


class UnusableMessages(PipelineError):
    """One conversation that is none, or that the model's chat template cannot render."""


class RefusedByTemplate(UnusableMessages):
    """One conversation that the model's chat template refuses."""


class TemplateRefusesMost(PipelineError):
    """Not the rows are at fault: quarantining them would leave nothing to learn from."""

    code: ClassVar[FailureCode] = "UNKNOWN"


@dataclass(frozen=True)
class Conversation:
    """What was said and done in one trajectory. A message whose `trained` is true was written by the agent itself."""

    trajectory_id: str
    messages: Sequence[Message]


@dataclass(frozen=True)
class Pair:
    """Two ways to go on from the same opening, of which the first was better; or, without a prompt, two whole
    conversations of different requests."""

    chosen_id: str
    rejected_id: str
    prompt: Sequence[Message]
    chosen: Sequence[Message]
    rejected: Sequence[Message]


def manifest_of(directory: Path) -> Manifest:
    """What the dataset is. Raises `DatasetUnreadable`."""
    try:
        return read_manifest((directory / MANIFEST).read_bytes(), MANIFEST)
    except (OSError, ManifestUnreadable) as error:
        raise DatasetUnreadable(f"The dataset's {MANIFEST} cannot be read ({error}): download it again.") from error


def read_demonstrations(directory: Path, split: Split) -> list[Conversation]:
    """The conversations to imitate. Raises `UnreadableRows` for all that are broken at once."""
    columns = ["trajectory_id", "messages"]
    frame = _read(directory / CONVERSATIONS, split, columns, pl.col("role") == "demonstration")

    def conversation(row: tuple[str, str]) -> Conversation:
        return Conversation(row[0], parse_messages(row[1]))

    return each_row(frame.iter_rows(), conversation, lambda row: (row[0],))


def read_pairs(directory: Path, split: Split) -> list[Pair]:
    """The pairs to prefer by. Raises `UnreadableRows` for all that are broken at once."""
    columns = ["chosen_id", "rejected_id", "prompt", "chosen", "rejected"]
    frame = _read(directory / PAIRS, split, columns)

    def pair(row: tuple[str, str, str, str, str]) -> Pair:
        prompt = [] if row[2] == "[]" else parse_messages(row[2])
        return Pair(row[0], row[1], prompt, parse_messages(row[3]), parse_messages(row[4]))

    return each_row(frame.iter_rows(), pair, lambda row: row[:2])


def each_row(
    rows: Iterable[_Row], make: Callable[[_Row], _Made], trajectories: Callable[[_Row], Iterable[str]]
) -> list[_Made]:
    """`make` of every row; raises one `UnreadableRows` that names the trajectories of all rows that failed.

    Raises `TemplateRefusesMost` when it is the model's chat template that most rows fail at.
    """
    made: list[_Made] = []
    reasons: list[UnusableMessages] = []
    failed: list[str] = []
    for row in rows:
        try:
            made.append(make(row))
        except UnusableMessages as unusable:
            reasons.append(unusable)
            failed += trajectories(row)
    refused = [reason for reason in reasons if isinstance(reason, RefusedByTemplate)]
    if 2 * len(refused) > len(made) + len(reasons):
        raise TemplateRefusesMost(
            f"The base model's chat template refuses {len(refused)} of {len(made) + len(reasons)} conversations"
            f" ({refused[0]}): choose a model that can hold such conversations, or mend its template."
        )
    if failed:
        raise UnreadableRows(str(reasons[0]), failed)
    return made


def parse_messages(text: str) -> list[Message]:
    """The messages of a row. Raises `UnusableMessages`, which says what is wrong and nothing of what was said."""
    try:
        messages = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise UnusableMessages("its messages are not JSON") from None
    if not isinstance(messages, list) or not messages:
        raise UnusableMessages("it has no messages")
    return [_checked(message) for message in messages]


def _checked(message: Any) -> Message:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise UnusableMessages(f"a message has none of the roles {', '.join(ROLES)}")
    if not isinstance(message.get("content"), str):
        raise UnusableMessages("a message's content is no text")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise UnusableMessages("a message's tool_calls are no list of objects")
    return {
        "role": message["role"],
        "content": message["content"],
        "trained": message.get("trained") is True and message["role"] == "assistant",
        **({"tool_calls": [_with_parsed_arguments(call) for call in calls]} if calls else {}),
    }


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Chat templates write arguments as JSON themselves: a text of JSON would be quoted twice."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _read(file: Path, split: Split, columns: list[str], *conditions: pl.Expr) -> pl.DataFrame:
    try:
        return pl.scan_parquet(file).filter(pl.col("split") == split, *conditions).select(columns).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DatasetUnreadable(
            f"{file.name} of the dataset cannot be read ({type(error).__name__}): download it again."
        ) from error
