"""The doors through which the plugin's files come in. None of them raises: Agent Zero would stop for it."""

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from rl_pipeline.collection.agent_zero.current_model import CurrentModel
from rl_pipeline.collection.agent_zero.recording import AgentZeroRecording
from rl_pipeline.collection.outbox import Outbox
from rl_pipeline.collection.outbox.counts import Counting
from rl_pipeline.collection.raw_objects import raw_objects
from rl_pipeline.contracts import ContractError, Feedback
from rl_pipeline.contracts.registry import validated

PLUGIN = "rl_pipeline"

ReadConfig = Callable[[str], Mapping[str, Any] | None]
"""Agent Zero's `get_plugin_config`."""

_lock = threading.Lock()
_recordings: list[AgentZeroRecording] = []
"""The one of this process, made with the first event."""
_faults = Counting()


def tell(event: str, agent: Any, data: Any, read_config: ReadConfig) -> None:
    """Something happened; the event is a method of `AgentZeroRecording`."""
    try:
        getattr(_recording(read_config), event)(agent, data or {})
    except Exception as error:  # noqa: BLE001 - an exception in an extension breaks the agent
        _faults.failed(f"recording Agent Zero ({event})", error)


def rate(context: Any, opinion: Mapping[str, Any], read_config: ReadConfig) -> dict[str, Any]:
    """What the user thinks of a message: `kind`, and `rating` or `text`. Waits for the disk, not for the stream."""
    try:
        recording = _recording(read_config)
        message_id = opinion.get("message_id")
        trajectory_id = recording.trajectory_of(
            context, str(message_id) if message_id else None, is_last=bool(opinion.get("is_last"))
        )
        if trajectory_id is None:
            return {"ok": False, "error": "no recorded trajectory belongs to this message"}
        recording.outbox.post(_feedback(str(context.id), trajectory_id, opinion))
    except ContractError as refused:
        return {"ok": False, "error": str(refused)}
    except Exception as error:  # noqa: BLE001 - told to the user, not to Agent Zero
        _faults.failed("keeping feedback", error)
        return {"ok": False, "error": f"the feedback could not be kept ({type(error).__name__})"}
    return {"ok": True, "trajectory_id": trajectory_id}


def close(seconds: float = 2.0) -> None:
    """End what the process has recorded so far; the next event begins anew, with the configuration of then."""
    with _lock:
        while _recordings:
            _recordings.pop().outbox.close(seconds)


def _feedback(session_id: str, trajectory_id: str, opinion: Mapping[str, Any]) -> Feedback:
    given = {name: opinion[name] for name in ("kind", "rating", "text") if opinion.get(name) is not None}
    message = {
        **given,
        "feedback_id": f"agent-zero-{uuid4()}",
        "trajectory_id": trajectory_id,
        "session_id": session_id,
        "timestamp": datetime.now(UTC).isoformat(),
        "metadata": {"channel": "webui"},
    }
    return validated(Feedback, message)


def _recording(read_config: ReadConfig) -> AgentZeroRecording:
    with _lock:
        if not _recordings:
            _recordings.append(_made(dict(read_config(PLUGIN) or {})))
        return _recordings[0]


def _made(config: Mapping[str, Any]) -> AgentZeroRecording:
    storage = config.get("trajectory_storage_path")
    outbox = Outbox(
        Path(config.get("outbox") or "usr/rl_pipeline_outbox"),
        config.get("nats_url") or "nats://nats:4222",
        user=config.get("nats_user") or None,
        password=config.get("nats_password") or None,
        credentials_file=config.get("nats_credentials_file") or None,
        open_objects=raw_objects(storage, config.get("s3_endpoint_url") or None).open if storage else None,
        disk_seconds=0,
    )
    return AgentZeroRecording(
        outbox, CurrentModel(config.get("gateway_url") or None), agent_id=config.get("agent_id") or "agent-zero"
    )
