"""Rewards as messages: what `agent.rl.reward.v1` says of a stored reward, and how each is published once.

The stream knows a message id again for an hour only. So before anything is published, what lies in the stream beyond
the last published reward that the table knows of is looked through: whoever died between publishing and marking has
left it there. One at a time, because two would both look before either publishes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from rl_pipeline.contracts import Normalization, Reward, RewardMetadata, serialize, subject_of
from rl_pipeline.contracts.reward import RewardComponents
from rl_pipeline.rewards.storing import mark_published
from rl_pipeline.rewards.term import Source
from rl_pipeline.stores.stream import OutgoingMessage, Stream
from rl_pipeline.stores.warehouse import Warehouse

EVALUATOR = "rl-pipeline"

POINTS = ("before_publishing", "after_publishing", "after_marking")
"""Where `reached` is called, in the order of one batch."""

_BATCH_REWARDS = 1_000


@dataclass(frozen=True)
class PublishReport:
    """What became of the rewards that were not marked as published."""

    published: int
    found: int
    """They were in the stream already, and are marked now."""


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
    there = _in_stream(messages, warehouse, reward_stream)
    published = found = 0
    for rewards in _unpublished(warehouse, stream, configuration):
        reached("before_publishing")
        new = [row for row in rewards.iter_rows(named=True) if row["reward_id"] not in there]
        answers = messages.publish_many(_outgoing(reward_message(row, sources)) for row in new)
        reached("after_publishing")
        sequences = {row["reward_id"]: answer.sequence for row, answer in zip(new, answers, strict=True)}
        marks = [sequences.get(identity) or there[identity] for identity in rewards["reward_id"]]
        mark_published(warehouse, stream, rewards.with_columns(pl.Series("published_sequence", marks, dtype=pl.UInt64)))
        reached("after_marking")
        published += len(new)
        found += rewards.height - len(new)
    return PublishReport(published, found)


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


def _outgoing(reward: Reward) -> OutgoingMessage:
    return OutgoingMessage(subject_of(reward), serialize(reward), reward.reward_id)


def _in_stream(messages: Stream, warehouse: Warehouse, reward_stream: str) -> dict[str, int]:
    """The message ids in the stream beyond what is marked, with their sequences."""
    marked = int(warehouse.query("SELECT max(published_sequence) AS last FROM rewards")["last"][0])
    last = messages.state(reward_stream).last_sequence
    # A stream that ends before is another one: nothing of it is marked.
    first = marked + 1 if marked <= last else 1
    return {
        message.message_id: message.sequence
        for batch in messages.read(reward_stream, first, last, _BATCH_REWARDS)
        for message in batch
        if message.message_id is not None
    }


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
