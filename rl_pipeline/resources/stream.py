"""The stream as a Dagster resource."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from pydantic import Field

from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.lease import Leases
from rl_pipeline.stores.stream import Stream


class StreamResource(dg.ConfigurableResource[Stream]):
    """Opens the JetStream adapter. One connection per `open`: ticks and runs are processes of their own."""

    url: str = Field(description="The NATS server or cluster with JetStream.")
    user: str | None = Field(None, description="The service account, where the server asks for one.")
    password: str | None = Field(None, description="The service account's password.")
    credentials_file: str | None = Field(None, description="A .creds file, instead of user and password.")

    @contextmanager
    def open(self) -> Iterator[Stream]:
        """A connection for the length of the block; raises `StreamUnavailable` when there is no server."""
        with self._connected() as stream:
            yield stream

    @contextmanager
    def open_with_leases(self) -> Iterator[tuple[Stream, Leases]]:
        """A connection, and the leases that are held over it."""
        with self._connected() as stream:
            yield stream, JetStreamLeases(stream)

    @contextmanager
    def open_jetstream(self) -> Iterator[JetStream]:
        """A connection, for who needs more of NATS than a stream: its leases, the desired state."""
        with self._connected() as stream:
            yield stream

    def _connected(self) -> JetStream:
        return JetStream.connect(
            self.url,
            user=self.user,
            password=self.password,
            credentials_file=self.credentials_file,
            name="rl-pipeline-dagster",
        )
