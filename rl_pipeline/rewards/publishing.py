"""Rewards as messages: what `agent.rl.reward.v1` says of a stored reward, and how each is published once.

The stream knows a message id again for an hour only. So before anything is published, what lies in the stream beyond
the last published reward that the table knows of is looked through and marked, whatever its configuration: whoever died
between publishing and marking has left it there. One at a time, because two would both look before either publishes.

A message belongs to the computation whose time it tells. An erasure takes rewards out of the table and, by
`unfounded_messages`, out of the stream; computed again they have their old ids and are published all the same.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import polars as pl
from pydantic import ValidationError

from rl_pipeline.contracts import (
    ContractError,
    Normalization,
    Reward,
    RewardMetadata,
    parse_message,
    serialize,
    subject_of,
)
from rl_pipeline.contracts.reward import RewardComponents
from rl_pipeline.rewards.storing import mark_published
from rl_pipeline.rewards.term import Source
from rl_pipeline.stores.stream import (
    MessageGone,
    OutgoingMessage,
    Published,
    PublishIncomplete,
    PublishRefused,
    StoredMessage,
    Stream,
)
from rl_pipeline.stores.warehouse import Warehouse

EVALUATOR = "rl-pipeline"

POINTS = ("before_publishing", "after_publishing", "after_marking")
"""Where `reached` is called, in the order of one batch."""

_BATCH_REWARDS = 1_000
# The ids of a query travel in its address, which has a limit.
_IDS_PER_QUERY = 500

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublishReport:
    """What became of the rewards that were not marked as published."""

    published: int
    found: int
    """They were in the stream already, under any configuration, and are marked now."""
    refused: int = 0
    """No message can hold them, or the stream takes none of such a size: they stay as they are."""


def publish_rewards(
    messages: Stream,
    warehouse: Warehouse,
    *,
    stream: str,
    reward_stream: str,
    configuration: str,
    sources: Mapping[str, Source],
    reached: Callable[[str], None] = lambda _: None,
) -> PublishReport:
    """Publish every stored reward of a configuration (its hash) that was not, all revisions, and mark it as published.

    `stream` is that of the trajectories; `sources` tells where the score of each term comes from. Killed anywhere and
    run again, it publishes each reward once. `reached` hears the name of each of `POINTS`.
    """
    found = _mark_what_is_there(messages, warehouse, reward_stream)
    published = refused = 0
    for rewards in _unpublished(warehouse, stream, configuration):
        reached("before_publishing")
        sequences = _publish(messages, reward_stream, _outgoing(rewards, sources))
        reached("after_publishing")
        marks = pl.Series("published_sequence", [sequences.get(key, 0) for key in rewards["reward_id"]], pl.UInt64)
        _mark(warehouse, rewards.with_columns(marks))
        reached("after_marking")
        published += len(sequences)
        refused += rewards.height - len(sequences)
    return PublishReport(published, found, refused)


def unfounded_messages(messages: Stream, warehouse: Warehouse, reward_stream: str) -> Iterator[int]:
    """The sequences of the messages of this pipeline that tell what no stored reward tells: it was erased.

    Also those that were published while it was, and those that nobody came to mark.
    """
    state = messages.state(reward_stream)
    for batch in messages.read(reward_stream, state.first_sequence, state.last_sequence, _BATCH_REWARDS):
        told = _told(batch)
        marked = warehouse.query(
            """
            SELECT reward_id, scored_at FROM rewards
            WHERE published_sequence BETWEEN {first:UInt64} AND {last:UInt64}
            """,
            {"first": batch[0].sequence, "last": batch[-1].sequence},
        )
        founded = set(marked.iter_rows())
        unmarked = [identity for identity, at in told if (identity, at) not in founded]
        founded |= set(_of_ids(warehouse, "SELECT reward_id, scored_at FROM rewards", unmarked).iter_rows())
        yield from (sequence for one, sequence in told.items() if one not in founded)


def reward_message(row: Mapping[str, Any], sources: Mapping[str, Source]) -> Reward:
    """What the message says of a row of the table of rewards. Raises `ContractError` for what no message can hold."""
    terms: list[str] = row["terms"]
    components = {
        term: {
            "score": row["scores"][place],
            "weight": row["weights"][place],
            "source": sources[term],
            "reasoning": row["evidences"][place],
            "raw_data": {"normalised": row["normalised"][place]},
        }
        for place, term in enumerate(terms)
    }
    windows = {
        term: {"mean": row["means"][place], "std": row["stds"][place], "n": row["counts"][place]}
        for place, term in enumerate(terms)
    }
    return Reward(
        reward_id=row["reward_id"],
        trajectory_id=row["trajectory_id"],
        session_id=row["session_id"],
        timestamp=row["scored_at"],
        reward_components=RewardComponents.model_validate(components),
        total_reward=row["total"],
        reward_type="sparse",
        normalization=Normalization.model_validate({"method": row["method"], "components": windows}),
        metadata=RewardMetadata(
            evaluator=EVALUATOR,
            evaluation_method=_method({sources[term] for term in terms}),
            confidence=row["confidence"],
            revision=row["revision"],
            raw_total=row["raw_total"],
            configuration_hash=row["configuration"],
        ),
    )


def _method(sources: set[Source]) -> Literal["automated", "human", "hybrid"]:
    if "human" not in sources:
        return "automated"
    return "human" if sources == {"human"} else "hybrid"


_Computed = tuple[str, datetime]
"""One computation of a reward: its id, and when."""


def _outgoing(rewards: pl.DataFrame, sources: Mapping[str, Source]) -> dict[str, OutgoingMessage]:
    """The messages by their reward's id, but for the rewards that no message can hold."""
    outgoing = {}
    for row in rewards.iter_rows(named=True):
        try:
            reward = reward_message(row, sources)
            outgoing[reward.reward_id] = OutgoingMessage(subject_of(reward), serialize(reward), reward.reward_id)
        except (ContractError, ValidationError):
            _log.warning("The reward %s cannot be published: it breaks the contract of its message.", row["reward_id"])
    return outgoing


def _publish(messages: Stream, reward_stream: str, outgoing: Mapping[str, OutgoingMessage]) -> dict[str, int]:
    """Publish the messages; their sequences by the same keys, but for those that the server will never take."""
    answers = _answers(messages, outgoing)
    # Within the hour the stream takes what is computed again for the message that was withdrawn.
    again = {
        key: replace(outgoing[key], message_id=f"{key}/{answer.sequence}")
        for key, answer in answers.items()
        if answer.duplicate and not _holds(messages, reward_stream, answer.sequence, outgoing[key].data)
    }
    sequences = {key: answer.sequence for key, answer in answers.items() if key not in again}
    return sequences | (_publish(messages, reward_stream, again) if again else {})


def _answers(messages: Stream, outgoing: Mapping[str, OutgoingMessage]) -> dict[str, Published]:
    try:
        return dict(zip(outgoing, messages.publish_many(outgoing.values()), strict=True))
    except PublishIncomplete as incomplete:
        refused = {name for name, reason in incomplete.failures.items() if isinstance(reason, PublishRefused)}
        if len(refused) < len(incomplete.failures):
            raise
    _log.warning("%d rewards cannot be published: the server refuses their messages.", len(refused))
    # The others are stored: published again under their ids, they are told their sequences.
    return _answers(messages, {key: one for key, one in outgoing.items() if one.message_id not in refused})


def _holds(messages: Stream, reward_stream: str, sequence: int, data: bytes) -> bool:
    try:
        return messages.get(reward_stream, sequence).data == data
    except MessageGone:
        return False


def _mark_what_is_there(messages: Stream, warehouse: Warehouse, reward_stream: str) -> int:
    """Mark the stored rewards whose messages lie in the stream beyond what is marked, in its order."""
    marked = int(warehouse.query("SELECT max(published_sequence) AS last FROM rewards")["last"][0])
    last = messages.state(reward_stream).last_sequence
    # A stream that ends before is another one: nothing of it is marked.
    first = marked + 1 if marked <= last else 1
    found = 0
    for batch in messages.read(reward_stream, first, last, _BATCH_REWARDS):
        told = _told(batch)
        rows = _of_ids(warehouse, "SELECT * FROM rewards FINAL", [identity for identity, _ in told])
        rows = rows.filter(pl.col("published_sequence") == 0)
        marks = [told.get(computed, 0) for computed in rows.select("reward_id", "scored_at").iter_rows()]
        found += _mark(warehouse, rows.with_columns(pl.Series("published_sequence", marks, pl.UInt64)))
    return found


def _mark(warehouse: Warehouse, rewards: pl.DataFrame) -> int:
    """Store the rewards again that have a `published_sequence` now; returns how many those are."""
    published = rewards.filter(pl.col("published_sequence") > 0)
    for (stream,), of_stream in published.group_by("stream"):
        mark_published(warehouse, str(stream), of_stream)
    return published.height


def _of_ids(warehouse: Warehouse, select: str, reward_ids: Sequence[str]) -> pl.DataFrame:
    return pl.concat(
        warehouse.query(
            f"{select} WHERE reward_id IN {{ids:Array(String)}}",
            {"ids": list(reward_ids[start : start + _IDS_PER_QUERY])},
        )
        for start in range(0, max(1, len(reward_ids)), _IDS_PER_QUERY)
    )


def _told(batch: Sequence[StoredMessage]) -> dict[_Computed, int]:
    """What the messages of this pipeline tell, and where."""
    told: dict[_Computed, int] = {}
    for message in batch:
        try:
            reward = parse_message(message.subject, message.data)
        except ContractError:
            continue
        if isinstance(reward, Reward) and reward.metadata.evaluator == EVALUATOR:
            told[reward.reward_id, reward.timestamp] = message.sequence
    return told


def _unpublished(warehouse: Warehouse, stream: str, configuration: str) -> Iterator[pl.DataFrame]:
    """The rewards that are not marked, in the stream's order, some at a time."""
    after = (0, "", -1)
    while True:
        rewards = warehouse.query(
            """
            SELECT * FROM rewards FINAL
            WHERE stream = {stream:String} AND configuration = {configuration:String} AND published_sequence = 0
                AND sequence >= {sequence:UInt64}
                AND (sequence, trajectory_id, revision) > ({sequence:UInt64}, {trajectory:String}, {revision:Int64})
            ORDER BY sequence, trajectory_id, revision LIMIT {limit:UInt32}
            """,
            {
                "stream": stream,
                "configuration": configuration,
                "sequence": after[0],
                "trajectory": after[1],
                "revision": after[2],
                "limit": _BATCH_REWARDS,
            },
        )
        if rewards.is_empty():
            return
        yield rewards
        after = rewards.select("sequence", "trajectory_id", "revision").row(-1)
