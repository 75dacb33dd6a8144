"""How a group of messages gets into its streams: pipelined, retried under the same ids, each with its own outcome."""

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Sequence

from nats.aio.msg import Msg

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.jetstream_api import RETRY_PAUSE_SECONDS, JetStreamApi
from rl_pipeline.stores.nats_connection import Denied, NoResponder, TooLarge, Unanswered
from rl_pipeline.stores.stream import OutgoingMessage, Published, PublishRefused, StreamMissing

GROUP_MESSAGES = 128
GROUP_BYTES = 4 * 2**20
ONCE_PER_SUBJECT = {"Nats-Expected-Last-Subject-Sequence": "0"}
_MESSAGE_TOO_LARGE = 10054
_WRONG_LAST_SEQUENCE = 10071
# A message on the same subject, or with the same id, is on its way into the stream and may yet fail: only asking again
# tells.
_ONE_IN_PROCESS = {10158, 10164}
# What a header carries unchanged.
_MESSAGE_ID = re.compile(r"[!-~]+")


def groups(messages: Iterable[OutgoingMessage]) -> Iterator[list[OutgoingMessage]]:
    """The messages in groups that are bounded in number and in bytes, however many there are."""
    group: list[OutgoingMessage] = []
    size = 0
    for message in messages:
        group.append(message)
        size += len(message.data)
        if len(group) == GROUP_MESSAGES or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


async def publish_group(api: JetStreamApi, messages: Sequence[OutgoingMessage]) -> list[Published | PipelineError]:
    """Publish every message; for each its acknowledgement, or the error that remained."""
    outcomes: dict[int, Published | PipelineError] = {
        index: PublishRefused(f"{message.message_id!r} is no message id: use visible ASCII characters without blanks")
        for index, message in enumerate(messages)
        if not _MESSAGE_ID.fullmatch(message.message_id)
    }
    waiting = [index for index in range(len(messages)) if index not in outcomes]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + api.patience_seconds
    while waiting:
        faults: dict[int, Unanswered] = {}
        for index, outcome in zip(waiting, await _publish_once(api, [messages[i] for i in waiting]), strict=True):
            if isinstance(outcome, Unanswered):
                faults[index] = outcome
            else:
                outcomes[index] = outcome
        if len(faults) < len(waiting):
            deadline = loop.time() + api.patience_seconds
        for subject in {messages[index].subject for index, fault in faults.items() if isinstance(fault, NoResponder)}:
            if await api.nothing_takes(subject):
                gone = {i: _no_stream(api, subject) for i in faults if messages[i].subject == subject}
                outcomes.update(gone)
        if loop.time() > deadline:
            outcomes.update({i: _given_up(api, messages[i], fault) for i, fault in faults.items() if i not in outcomes})
        waiting = [index for index in faults if index not in outcomes]
        if waiting:
            await asyncio.sleep(RETRY_PAUSE_SECONDS)
    return [outcomes[index] for index in range(len(messages))]


async def _publish_once(
    api: JetStreamApi, messages: Sequence[OutgoingMessage]
) -> list[Published | PipelineError | Unanswered]:
    answers = await api.ask_all([(message.subject, message.data, _headers(message)) for message in messages])
    return [_acknowledgement(message, answer) for message, answer in zip(messages, answers, strict=True)]


def _headers(message: OutgoingMessage) -> dict[str, str]:
    conditions = ONCE_PER_SUBJECT if message.once_per_subject else {}
    return {**message.headers, **conditions, "Nats-Msg-Id": message.message_id}


def _acknowledgement(message: OutgoingMessage, answer: Msg | Exception) -> Published | PipelineError | Unanswered:
    if isinstance(answer, Exception):
        return answer if isinstance(answer, Unanswered) else _refusal(message, answer)
    acknowledgement = json.loads(answer.data)
    error = acknowledgement.get("error")
    if error is None:
        return Published(acknowledgement["seq"], acknowledgement.get("duplicate", False))
    if error["code"] == 503 or error["err_code"] in _ONE_IN_PROCESS:
        return Unanswered(error["description"])
    if message.once_per_subject and error["err_code"] == _WRONG_LAST_SEQUENCE:
        return Published(int(error["description"].rpartition(" ")[2]), duplicate=True)
    if error["err_code"] == _MESSAGE_TOO_LARGE:
        limit = f"max_msg_size of the stream {acknowledgement['stream']}"
        return _refusal(message, TooLarge(f"{len(message.data)} bytes are more than {limit}"))
    return PublishRefused(f"{message.message_id}: {acknowledgement['stream']} refuses it: {error['description']}")


def _refusal(message: OutgoingMessage, error: Exception) -> PublishRefused:
    if isinstance(error, TooLarge):
        return PublishRefused(f"{message.message_id}: {error}; payloads over 512 KB travel by claim check")
    if isinstance(error, Denied):
        return PublishRefused(f"{message.message_id}: this account may not {error}; use the account that may")
    return PublishRefused(f"{message.message_id}: cannot be sent on {message.subject!r}: {error}")


def _no_stream(api: JetStreamApi, subject: str) -> StreamMissing:
    return StreamMissing(f"no stream at {api.connection.url} takes {subject}: run `rl-pipeline streams bootstrap`")


def _given_up(api: JetStreamApi, message: OutgoingMessage, fault: Unanswered) -> PipelineError:
    return _no_stream(api, message.subject) if isinstance(fault, NoResponder) else api.unavailable(fault)
