"""The ways out: a subject of NATS, a file of this machine, somebody's webhook."""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rl_pipeline.errors import PipelineError
from rl_pipeline.observability.notices.outbox import NotDelivered, Notice, Way
from rl_pipeline.stores.stream import Stream

NATS, FILE, WEBHOOK = "nats", "file", "webhook"
_WEBHOOK_SECONDS = 10.0


def to_nats(stream: Callable[[], Stream]) -> Way:
    """Publishes on the notice's subject, under its id. `stream` connects, or raises."""

    def deliver(notice: Notice) -> None:
        try:
            stream().publish(notice.subject, json.dumps(dict(notice.body)).encode(), notice.id)
        except PipelineError as trouble:
            raise NotDelivered(str(trouble)) from trouble

    return deliver


def to_file(path: Path) -> Way:
    """Adds a line of JSON. A line that a dying process has left unfinished stays alone on its line."""

    def deliver(notice: Notice) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab+") as file:
                if file.tell() and not _ends_a_line(file.fileno(), file.tell()):
                    file.write(b"\n")
                file.write(json.dumps(dict(notice.body)).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as trouble:
            raise NotDelivered(f"{path}: {trouble.strerror}") from trouble

    return deliver


def to_webhook(address: str, seconds: float = _WEBHOOK_SECONDS) -> Way:
    """Posts JSON; `Idempotency-Key` is the notice's id. What is not answered by a 2xx is not delivered.

    Chat systems show `text`; whoever wants more reads the rest. An address may hold a token: no trouble shows it.
    """
    where = urlsplit(address).hostname

    def deliver(notice: Notice) -> None:
        request = urllib.request.Request(  # noqa: S310  # the settings allow http and https alone
            address,
            data=json.dumps(dict(notice.body)).encode(),
            headers={"Content-Type": "application/json", "Idempotency-Key": notice.id},
        )
        try:
            with urllib.request.urlopen(request, timeout=seconds):  # noqa: S310  # as above
                pass
        except urllib.error.HTTPError as refused:
            refused.close()
            raise NotDelivered(f"the webhook at {where} answered {refused.code}") from None
        except (OSError, http.client.HTTPException) as trouble:
            reason = type(getattr(trouble, "reason", trouble)).__name__
            raise NotDelivered(f"the webhook at {where} does not answer ({reason})") from None

    return deliver


def _ends_a_line(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"
