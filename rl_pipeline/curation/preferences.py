"""From two conversations to one pair: what both have in common is the prompt, what each went on with is compared."""

from collections.abc import Sequence
from dataclasses import dataclass

from rl_pipeline.curation.conversations import Message, opening_of


@dataclass(frozen=True)
class Preference:
    """A prompt and two ways to go on, of which the first earned more. Both begin with what the agent wrote."""

    prompt: Sequence[Message]
    chosen: Sequence[Message]
    rejected: Sequence[Message]


def preference_of(chosen: Sequence[Message], rejected: Sequence[Message]) -> Preference | None:
    """The longest common prompt and the two ways on; None where the openings differ, or the agent did the same."""
    common = _common_length(chosen, rejected)
    if common < max(len(opening_of(chosen)), len(opening_of(rejected))):
        return None
    # Back to where both go on with something that the agent wrote.
    common = min(common, len(chosen) - 1, len(rejected) - 1)
    while common > 0 and not chosen[common]["role"] == rejected[common]["role"] == "assistant":
        common -= 1
    better, worse = chosen[common:], rejected[common:]
    if common == 0 or _taught(better) == _taught(worse) or not _taught(better) or not _taught(worse):
        return None
    prompt: list[Message] = [{**message, "trained": False} for message in chosen[:common]]
    return Preference(prompt, better, worse)


def _common_length(one: Sequence[Message], other: Sequence[Message]) -> int:
    common = 0
    for mine, theirs in zip(one, other, strict=False):
        if _told(mine) != _told(theirs):
            break
        common += 1
    return common


def _told(message: Message) -> tuple[object, ...]:
    return message["role"], message["content"], message.get("tool_calls")


def _taught(messages: Sequence[Message]) -> list[tuple[object, ...]]:
    return [_told(message) for message in messages if message["trained"]]
