"""An alert as a notice: one for each episode, whatever was looked at how often."""

from datetime import datetime
from hashlib import sha256
from typing import Literal

from rl_pipeline.contracts import Alert, AlertKind
from rl_pipeline.observability.notices.outbox import Notice
from rl_pipeline.observability.notices.ways import FILE, NATS, WEBHOOK

ALERT_SUBJECT = "agent.rl.alert.v1"


def alert(
    kind: AlertKind,
    episode: str,
    now: datetime,
    *,
    text: str,
    next_step: str,
    subject: str | None = None,
    severity: Literal["critical", "warning"] = "critical",
) -> Alert:
    """The alert of an episode: the same episode has the same id."""
    return Alert(
        alert_id=f"{kind}-{sha256(episode.encode()).hexdigest()[:16]}",
        kind=kind,
        severity=severity,
        timestamp=now,
        subject=subject[:512] if subject else None,
        text=text,
        next_step=next_step,
    )


def notice_of(raised: Alert) -> Notice:
    """By every way: what concerns NATS leaves by the others at once, and by NATS when it is back."""
    return Notice(
        raised.alert_id, ALERT_SUBJECT, raised.model_dump(mode="json"), (FILE, WEBHOOK, NATS), raised.timestamp
    )
