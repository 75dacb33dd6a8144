"""What a running stack writes down of itself, and how other commands find it. Needs no more than an agent has."""

import contextlib
import fcntl
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rl_pipeline.embedded.gateway_secrets import gateway_secrets
from rl_pipeline.embedded.profile import embedded_profile
from rl_pipeline.embedded.redaction_keys import redaction_keys
from rl_pipeline.embedded.service_key import service_key
from rl_pipeline.settings import Settings


@dataclass(frozen=True)
class ChildProcess:
    """A process of the stack. Its creation time tells it from a later process with the same id."""

    pid: int
    created: float


@dataclass(frozen=True)
class StackRecord:
    """What `rl-pipeline up` writes down, so that other commands find its servers and a later `up` its leftovers."""

    pid: int
    started: str
    urls: dict[str, str] = field(default_factory=dict)
    processes: dict[str, ChildProcess | None] = field(default_factory=dict)
    """Each component's process; None while it waits for its restart."""

    @classmethod
    def parse(cls, text: str) -> "StackRecord":
        """The inverse of `text`."""
        values = json.loads(text)
        children = values.pop("processes").items()
        processes = {name: ChildProcess(**child) if child else None for name, child in children}
        return cls(**values, processes=processes)

    def text(self) -> str:
        """The record as JSON, for people and for `parse`."""
        return json.dumps(asdict(self), indent=2)


def find_running_stack(directory: Path) -> StackRecord | None:
    """The stack that holds the directory now, or None."""
    with contextlib.suppress(OSError), (directory / "lock").open("r") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return read_record(directory)
    return None


def read_record(directory: Path) -> StackRecord | None:
    """The last record written in the directory, whether or not its stack still runs; None when it cannot be read."""
    try:
        return StackRecord.parse((directory / "stack.json").read_text())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def settings_of_running_stack(settings: Settings, record: StackRecord) -> Settings:
    """The settings with which a command reaches the stack that runs in their home."""
    from rl_pipeline.embedded.signing_keys import signing_keys  # what runs beside a stack has what a stack needs

    home, urls = settings.rl_pipeline_home, record.urls
    servers = embedded_profile(
        home,
        nats_url=urls["nats"],
        clickhouse_url=urls["clickhouse"],
        mlflow_url=urls["mlflow"],
        gateway_url=urls["gateway"],
        ui_url=urls["ui"],
        service_url=urls["service"],
    )
    secrets = redaction_keys(home) | signing_keys(home) | gateway_secrets(home) | service_key(home)
    return settings.with_defaults({**servers, **secrets})
