"""How messages come out of JetStream: by sequence with direct gets, and from durable consumers with pulls.

A direct get needs no consumer, so a reader leaves nothing on the server, may ask any replica, and needs no right to
create consumers, which would let it send the stream's messages anywhere in the account.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from nats.aio.msg import Msg

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.jetstream_api import JetStreamApi, JetStreamRefused
from rl_pipeline.stores.jetstream_publishing import ONCE_PER_SUBJECT
from rl_pipeline.stores.nats_connection import NoResponder, Unanswered
from rl_pipeline.stores.stream import StoredMessage, StreamState

# One batch of a read ends before it outgrows this, so that large messages do not fill the memory.
READ_BYTES = 16 * 2**20
_MESSAGE_NOT_FOUND = 10037
_MESSAGE_ID = "Nats-Msg-Id"
_NOT_THE_PUBLISHERS = frozenset(
    {"Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence"}
    | {_MESSAGE_ID, *ONCE_PER_SUBJECT}
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def stream_state(info: dict[str, Any]) -> StreamState:
    """The port's view of JetStream's stream info."""
    state = info["state"]
    empty = state["messages"] == 0
    return StreamState(
        name=info["config"]["name"],
        first_sequence=state["last_seq"] + 1 if empty else state["first_seq"],
        last_sequence=state["last_seq"],
        messages=state["messages"],
        bytes=state["bytes"],
        deleted=state.get("num_deleted", 0),
        first_time=None if empty else datetime.fromisoformat(state["first_ts"]),
        last_time=None if empty else datetime.fromisoformat(state["last_ts"]),
        consumers=state["consumer_count"],
    )


def missing_ranges(info: dict[str, Any], first: int, last: int) -> list[range]:
    """The missing sequences of a stream info with its deleted details, within `first` to `last`."""
    state = stream_state(info)
    first, last = max(first, 1), min(last, state.last_sequence)
    before = range(first, min(state.first_sequence, last + 1))
    ranges = [before] if before else []
    for sequence in sorted(info["state"].get("deleted") or ()):
        if not max(first, state.first_sequence) <= sequence <= last:
            continue
        if ranges and ranges[-1].stop == sequence:
            ranges[-1] = range(ranges[-1].start, sequence + 1)
        else:
            ranges.append(range(sequence, sequence + 1))
    return ranges


async def read_batch(api: JetStreamApi, stream: str, first: int, last: int, size: int) -> list[StoredMessage]:
    """The next messages from `first` on, at most `size` of them and none after `last`; nothing when there are none."""
    request = {
        "seq": first,
        "next_by_subj": ">",
        "batch": min(size, last - first + 1),
        "max_bytes": READ_BYTES,
    }

    async def attempt() -> list[StoredMessage]:
        replies = await _direct_get(api, stream, request)
        if replies:
            return [message for message in map(_stored, replies) if message.sequence <= last]
        following = await sequence_at_leader(api, stream, {"seq": first, "next_by_subj": ">"})
        if following is None or following > last:
            return []
        raise Unanswered("the replica that was asked is behind")

    return await api.patiently(attempt)


async def _direct_get(api: JetStreamApi, stream: str, request: dict[str, Any]) -> list[Msg]:
    """The replies up to the first that is missing: a batch that broke off is as good as a shorter one."""
    replies: list[Msg] = []

    def is_last(reply: Msg) -> bool:
        # Told apart by what the server adds: a publisher may have put any other header into its message.
        if reply.headers and "Nats-Sequence" in reply.headers:
            replies.append(reply)
            return False
        return True

    subject = f"$JS.API.DIRECT.GET.{stream}"
    try:
        await api.connection.ask(subject, json.dumps(request).encode(), seconds=api.answer_seconds, is_last=is_last)
    except NoResponder:
        await _explain_no_direct_get(api, stream)
        raise
    except Unanswered:
        if not replies:
            raise
    unbroken: list[Msg] = []
    previous = "0"
    for reply in replies:
        headers = reply.headers or {}
        if headers["Nats-Last-Sequence"] != previous:
            break
        previous = headers["Nats-Sequence"]
        unbroken.append(reply)
    if replies and not unbroken:
        raise Unanswered("a reply was lost")
    return unbroken


async def _explain_no_direct_get(api: JetStreamApi, stream: str) -> None:
    info = await api.request(f"STREAM.INFO.{stream}")
    if not info["config"].get("allow_direct"):
        raise PipelineError(
            f"the stream {stream} does not allow direct reads: run `nats stream edit {stream} --allow-direct`"
        )


async def sequence_at_leader(api: JetStreamApi, stream: str, request: dict[str, Any]) -> int | None:
    """The sequence of the message that the leader would answer with: replicas may be behind, the leader is not."""
    try:
        answer = await api.request(f"STREAM.MSG.GET.{stream}", request)
    except JetStreamRefused as refused:
        if refused.code == _MESSAGE_NOT_FOUND:
            return None
        raise
    return int(answer["message"]["seq"])


async def pull(api: JetStreamApi, stream: str, consumer: str, count: int, wait_seconds: float) -> list[Msg]:
    """Up to `count` pending messages of a durable consumer, waiting for the first if there is none."""
    pending = await _pull_once(api, stream, consumer, {"batch": count, "no_wait": True}, 0)
    if pending or wait_seconds <= 0:
        return pending
    expires = {"batch": 1, "expires": int(wait_seconds * 10**9)}
    first = await _pull_once(api, stream, consumer, expires, wait_seconds)
    if not first or count == 1:
        return first
    return first + await _pull_once(api, stream, consumer, {"batch": count - 1, "no_wait": True}, 0)


async def _pull_once(
    api: JetStreamApi, stream: str, consumer: str, request: dict[str, Any], wait_seconds: float
) -> list[Msg]:
    replies: list[Msg] = []

    def is_last(reply: Msg) -> bool:
        # Only a delivery has a reply subject; the server's notices, and no header of a publisher, have none.
        if not reply.reply:
            return True
        replies.append(reply)
        return len(replies) == int(request["batch"])

    async def attempt() -> list[Msg]:
        try:
            await api.connection.pull(
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
                json.dumps(request).encode(),
                seconds=wait_seconds + api.answer_seconds,
                is_last=is_last,
            )
        except NoResponder:
            await api.request(f"CONSUMER.INFO.{stream}.{consumer}")
            raise
        except Unanswered:
            # What arrived is ours to settle, whatever happened to the rest.
            if not replies:
                raise
        return replies

    return await api.patiently(attempt)


def delivered(message: Msg) -> tuple[StoredMessage, int]:
    """The message of a delivery, and the number of the attempt, from the subject that settles it.

    `$JS.ACK.<stream>.<consumer>.<attempt>.<stream sequence>.<consumer sequence>.<nanoseconds>.<pending>`, where
    `<domain>.<account>` may precede the stream and a random token may follow.
    """
    tokens = message.reply.split(".")
    attempt, sequence, _, nanoseconds = tokens[4:8] if len(tokens) == 9 else tokens[6:10]
    time = _EPOCH + timedelta(microseconds=int(nanoseconds) // 1000)
    headers = dict(message.headers or {})
    message_id = headers.pop(_MESSAGE_ID, None)
    return StoredMessage(int(sequence), message.subject, message.data, message_id, headers, time), int(attempt)


def _stored(reply: Msg) -> StoredMessage:
    headers = reply.headers or {}
    own = {name: value for name, value in headers.items() if name not in _NOT_THE_PUBLISHERS}
    return StoredMessage(
        sequence=int(headers["Nats-Sequence"]),
        subject=headers["Nats-Subject"],
        data=reply.data,
        message_id=headers.get(_MESSAGE_ID),
        headers=own,
        time=datetime.fromisoformat(headers["Nats-Time-Stamp"]),
    )
