"""Which streams, durable consumers and buckets exist, with their limits; how they are created, how drift is found.

`max_bytes` of the trajectories is the month's feed that is planned for, 100 GB; the limits of all streams together stay
below what the embedded server may store. Only what exceeds a limit is dropped, the oldest first.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_api import JetStreamRefused
from rl_pipeline.stores.stream import StreamMissing

_GB = 10**9
_UNLIMITED = -1
_LARGEST_MESSAGE = 2**20
# A publisher that was cut off may repeat itself this long, and each message is still stored once.
_DUPLICATE_WINDOW = timedelta(hours=1)
# Waiting times between deliveries; the last one repeats. Ten deliveries outlast two and a half hours of trouble.
_BACKOFF = tuple(timedelta(seconds=seconds) for seconds in (30, 60, 120, 300, 600, 1800))
_MAX_DELIVER = 10

_DURATIONS = {"max_age", "duplicate_window", "backoff"}
_TOO_FEW_SERVERS = {10005, 10074}


class TopologyConflict(PipelineError):
    """A stream of somebody else is in the way."""


@dataclass(frozen=True)
class ConsumerSpec:
    """A durable pull consumer with explicit acknowledgement."""

    name: str
    subject: str
    description: str
    max_deliver: int = _MAX_DELIVER

    def configuration(self) -> dict[str, Any]:
        """The consumer as JetStream's API takes it."""
        return {
            "name": self.name,
            "durable_name": self.name,
            "description": self.description,
            "filter_subject": self.subject,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "max_deliver": self.max_deliver,
            "backoff": [_nanoseconds(wait) for wait in _BACKOFF],
        }


@dataclass(frozen=True)
class StreamSpec:
    """A stream with its limits; -1 is none. `tolerated` maps a subject that may exist instead to its consequence."""

    name: str
    description: str
    subjects: tuple[str, ...]
    max_age: timedelta
    max_bytes: int
    max_messages: int = _UNLIMITED
    consumers: tuple[ConsumerSpec, ...] = ()
    tolerated: Mapping[str, str] = field(default_factory=dict)

    def configuration(self, replicas: int) -> dict[str, Any]:
        """The stream as JetStream's API takes it."""
        return {
            "name": self.name,
            "description": self.description,
            "subjects": list(self.subjects),
            "retention": "limits",
            "discard": "old",
            "storage": "file",
            "max_age": _nanoseconds(self.max_age),
            "max_msgs": self.max_messages,
            "max_bytes": self.max_bytes,
            "max_msg_size": _LARGEST_MESSAGE,
            "duplicate_window": _nanoseconds(_DUPLICATE_WINDOW),
            "allow_direct": True,
            "num_replicas": replicas,
        }


@dataclass(frozen=True)
class BucketSpec:
    """A key-value bucket, to JetStream a stream of the last values of each key. Values may end by themselves.

    A bucket that was lost and is made again goes on with higher revisions: whoever has read a value of the former one
    cannot swap it for one of the latter.
    """

    bucket: str
    description: str
    max_bytes: int
    history: int = 1
    """Values that are kept of each key."""
    consumers: ClassVar[tuple[ConsumerSpec, ...]] = ()
    tolerated: ClassVar[Mapping[str, str]] = {}

    @property
    def name(self) -> str:
        """The name of its stream."""
        return f"KV_{self.bucket}"

    @property
    def subjects(self) -> tuple[str, ...]:
        """What its stream takes."""
        return (f"$KV.{self.bucket}.>",)

    def key(self, name: str) -> str:
        """The subject of a key."""
        return f"$KV.{self.bucket}.{name}"

    def configuration(self, replicas: int) -> dict[str, Any]:
        """The bucket's stream as JetStream's API takes it: as `nats kv add` makes it, with values that may end."""
        return {
            "name": self.name,
            "description": self.description,
            "subjects": list(self.subjects),
            "retention": "limits",
            "discard": "new",
            "storage": "file",
            "max_msgs_per_subject": self.history,
            "max_bytes": self.max_bytes,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "allow_msg_ttl": True,
            "num_replicas": replicas,
        }


TRAJECTORIES = StreamSpec(
    "RL_TRAJECTORIES",
    "What agents did, one message per trajectory.",
    ("agent.rl.trajectory.v1",),
    timedelta(days=30),
    max_bytes=100 * _GB,
    max_messages=1_000_000,
)
REWARDS = StreamSpec(
    "RL_REWARDS",
    "The rewards that were computed.",
    ("agent.rl.reward.v1",),
    timedelta(days=30),
    max_bytes=4 * _GB,
    max_messages=500_000,
)
TRAINING = StreamSpec(
    "RL_TRAINING",
    "Requests for training, their status, and cancellations.",
    # Listed one by one: the query agent.rl.training.status.request must stay free.
    ("agent.rl.training.request.v1", "agent.rl.training.status.v1", "agent.rl.training.cancel.v1"),
    timedelta(days=7),
    max_bytes=1 * _GB,
    max_messages=10_000,
    # What somebody asks for is never given up by the server: what is invalid is settled with a dead letter.
    consumers=(
        ConsumerSpec(
            "training_requests", "agent.rl.training.request.v1", "Starts a run for each accepted request.", _UNLIMITED
        ),
        ConsumerSpec(
            "training_cancellations", "agent.rl.training.cancel.v1", "Ends jobs that nobody wants any more.", _UNLIMITED
        ),
    ),
    tolerated={
        "agent.rl.training.>": "JetStream answers agent.rl.training.status.request with a PubAck before the service can"
    },
)
MODELS = StreamSpec(
    "RL_MODELS",
    "Models that were deployed.",
    ("agent.rl.model.>",),
    timedelta(days=90),
    max_bytes=1 * _GB,
)
FEEDBACK = StreamSpec(
    "RL_FEEDBACK",
    "What people said about trajectories, possibly long after them.",
    ("agent.rl.feedback.v1",),
    timedelta(days=30),
    max_bytes=4 * _GB,
    max_messages=1_000_000,
)
SERVING = StreamSpec(
    "RL_SERVING",
    "One outcome per session that the gateway served.",
    ("agent.rl.serving.outcome.v1",),
    timedelta(days=7),
    max_bytes=8 * _GB,
    consumers=(
        ConsumerSpec("serving_outcomes", "agent.rl.serving.outcome.v1", "The evidence on which rollouts advance."),
    ),
)
REPORTS = StreamSpec(
    "RL_REPORTS",
    "Reports and alerts, for superiors.",
    ("agent.rl.report.v1", "agent.rl.alert.v1"),
    timedelta(days=90),
    max_bytes=1 * _GB,
)
DEAD_LETTERS = StreamSpec(
    "RL_DLQ",
    "Refused messages: sequence, reason and a redacted excerpt.",
    ("agent.rl.dlq.>",),
    timedelta(days=30),
    max_bytes=8 * _GB,
    max_messages=1_000_000,
)
ADVISORIES = StreamSpec(
    "RL_ADVISORIES",
    "Messages that a consumer gave up on; JetStream itself only announces them, once.",
    ("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.*.*",),
    timedelta(days=30),
    max_bytes=1 * _GB,
    max_messages=100_000,
)

STREAMS = (TRAJECTORIES, REWARDS, TRAINING, MODELS, FEEDBACK, SERVING, REPORTS, DEAD_LETTERS, ADVISORIES)

LEASES = BucketSpec("RL_LEASES", "Who does what only one may do at a time.", max_bytes=10**6)
DEPLOYMENT = BucketSpec("RL_DEPLOYMENT", "Which models shall be served.", max_bytes=10**8, history=64)
BUCKETS = (LEASES, DEPLOYMENT)


@dataclass(frozen=True)
class Drift:
    """One setting of what exists that differs from its specification. `where` is a stream, or a stream and consumer."""

    where: str
    setting: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.where}: {self.setting} is {self.found}, expected {self.expected}"


@dataclass(frozen=True)
class BootstrapReport:
    """What bootstrap made, what it found different and left alone, and what follows from what it found."""

    created: tuple[str, ...]
    drift: tuple[Drift, ...]
    notes: tuple[str, ...]


def bootstrap(
    jetstream: JetStream, replicas: int = 1, streams: Sequence[StreamSpec | BucketSpec] = (*STREAMS, *BUCKETS)
) -> BootstrapReport:
    """Create the streams, consumers and buckets that are missing; change nothing that exists.

    Idempotent. Raises `TopologyConflict`, before anything is created, when another stream takes one of the subjects.
    """
    existing = {spec.name: _stream_configuration(jetstream, spec.name) for spec in streams}
    for spec in streams:
        if existing[spec.name] is None:
            _refuse_conflicts(jetstream, spec)
    created: list[str] = []
    drift: list[Drift] = []
    notes: list[str] = []
    for spec in streams:
        found = existing[spec.name]
        if found is None:
            _create_stream(jetstream, spec, replicas)
            created.append(spec.name)
        else:
            differences = list(_differences(spec.name, spec.configuration(replicas), found))
            excused = set(found["subjects"]) & set(spec.tolerated)
            notes += [f"{spec.name} takes {subject}: {spec.tolerated[subject]}" for subject in sorted(excused)]
            drift += [drifted for drifted in differences if not (excused and drifted.setting == "subjects")]
        for consumer in spec.consumers:
            where = f"{spec.name}.{consumer.name}"
            found = _consumer_configuration(jetstream, spec.name, consumer.name)
            if found is None:
                body = {"stream_name": spec.name, "action": "create", "config": consumer.configuration()}
                jetstream.request(f"CONSUMER.CREATE.{where}.{consumer.subject}", body)
                created.append(where)
            else:
                drift += _differences(where, consumer.configuration(), found)
    return BootstrapReport(tuple(created), tuple(drift), tuple(notes))


def _create_stream(jetstream: JetStream, spec: StreamSpec | BucketSpec, replicas: int) -> None:
    configuration = spec.configuration(replicas)
    if isinstance(spec, BucketSpec):
        configuration["first_seq"] = time.time_ns() // 10**6
    try:
        jetstream.request(f"STREAM.CREATE.{spec.name}", configuration)
    except JetStreamRefused as refused:
        if refused.code in _TOO_FEW_SERVERS:
            raise TopologyConflict(f"{refused}: set NATS_REPLICAS to no more than the servers there are") from refused
        raise


def _stream_configuration(jetstream: JetStream, stream: str) -> dict[str, Any] | None:
    try:
        configuration: dict[str, Any] = jetstream.request(f"STREAM.INFO.{stream}")["config"]
    except StreamMissing:
        return None
    return configuration


def _consumer_configuration(jetstream: JetStream, stream: str, consumer: str) -> dict[str, Any] | None:
    try:
        configuration: dict[str, Any] = jetstream.request(f"CONSUMER.INFO.{stream}.{consumer}")["config"]
    except StreamMissing:
        return None
    return configuration


def _refuse_conflicts(jetstream: JetStream, spec: StreamSpec | BucketSpec) -> None:
    for subject in spec.subjects:
        for owner in jetstream.request("STREAM.NAMES", {"subject": subject})["streams"] or ():
            raise TopologyConflict(
                f"the stream {owner} takes {subject}, which belongs to {spec.name}: "
                f"release it with `nats stream edit {owner} --subjects …`, then bootstrap again"
            )


def _differences(where: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Drift]:
    for setting, value in expected.items():
        actual = found.get(setting)
        same = set(value) == set(actual or ()) if setting == "subjects" else value == actual
        if not same and setting != "description":
            yield Drift(where, setting, _for_people(setting, value), _for_people(setting, actual))


def _for_people(setting: str, value: Any) -> str:
    if value == _UNLIMITED or value is None:
        return "unlimited" if value == _UNLIMITED else "unset"
    if setting in _DURATIONS and isinstance(value, int):
        return str(timedelta(microseconds=value // 1000))
    if isinstance(value, list):
        return ", ".join(_for_people(setting, item) for item in value)
    return str(value)


def _nanoseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1) * 1000
