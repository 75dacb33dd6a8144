"""The tools of the `rl-trainer` agent, under the names its profile gives them: thin doors that read the settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rl_pipeline.collection import publishing, subscribing
from rl_pipeline.contracts import Message, validate_trajectory
from rl_pipeline.opening import current_settings, open_raw_objects, open_stream
from rl_pipeline.stores.stream import Published

__all__ = ["publish_nats", "subscribe_nats", "validate_trajectory"]


def publish_nats(
    subject: str, payload: Message | dict[str, Any] | str | bytes, schema_validate: bool = True
) -> Published:
    """Publish one message at `NATS_URL`; see `rl_pipeline.collection.publish_nats`."""
    settings = current_settings()
    with open_stream(settings) as stream:
        return publishing.publish_nats(stream, subject, payload, schema_validate, lambda: open_raw_objects(settings))


@contextmanager
def subscribe_nats(subject: str, queue_group: str = "rl-trainers") -> Iterator[subscribing.Subscription]:
    """Hear a subject at `NATS_URL` for the length of the block; see `rl_pipeline.collection.subscribe_nats`."""
    with open_stream(current_settings()) as stream, subscribing.subscribe_nats(stream, subject, queue_group) as heard:
        yield heard
