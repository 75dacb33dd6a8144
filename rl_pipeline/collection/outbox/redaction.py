"""The redactor of an outbox: its key and its compiled rules are kept beside the trajectories.

Whoever gives no policy gets one with a key of the outbox's own, so that nothing leaves an agent unredacted because
somebody forgot to set a key. Compiling takes seconds where Vectorscan is installed; every later process loads what the
first has compiled.
"""

import contextlib
import json
import os
import secrets
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_pipeline.collection.edge_redaction import redact_tree
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor, SensitiveKey
from rl_pipeline.redaction.resolution import Knowledge

_KEY_FILE = "redaction.key"
_RULES_FILE = "redaction.rules"
_SPELLING = frozenset({"prompt_token_ids", "completion_token_ids", "logprobs"})


@dataclass(slots=True)
class Secrets:
    """What is known of the secrets of one trajectory, from its beginning to the part that is being looked at."""

    memory: Knowledge = field(default_factory=lambda: Knowledge({}))
    were_replaced: bool = False

    def from_the_beginning(self) -> "Secrets":
        """To look at all parts again."""
        return Secrets(self.memory)


class OutboxRedaction:
    """Redacts what an outbox writes; made by the first use, which may come from any thread."""

    def __init__(self, directory: Path, policy: RedactionPolicy | None) -> None:
        self._directory = directory
        self._policy = policy
        self._lock = threading.Lock()
        self._redactor: Redactor | None = None

    def redactor(self) -> Redactor:
        """The redactor; the first call may take seconds."""
        with self._lock:
            if self._redactor is None:
                self._redactor = self._opened(self._policy or RedactionPolicy(_own_key(self._directory)))
            return self._redactor

    def part(self, name: str, content: dict[str, Any], secrets: "Secrets") -> dict[str, Any]:
        """What a journal keeps: a turn, or what is said at the begin or end of a trajectory.

        Token ids spell the text, and a prompt spells all that came before: from the first part on in which something
        was replaced, turns have none.
        """
        if name == "redacted_by":
            return content
        if name != "turn":
            clean = redact_tree(content, self.redactor(), secrets.memory)
        else:
            try:
                [clean] = redact_tree({"turns": [content]}, self.redactor(), secrets.memory)["turns"]
            except SensitiveKey:
                # Names of fields never change, but a turn is free to tell its content as text, where everything does.
                [clean] = redact_tree({"turns": [_as_text(content)]}, self.redactor(), secrets.memory)["turns"]
        secrets.were_replaced = secrets.were_replaced or clean != content
        if secrets.were_replaced and "sampling" in clean:
            sampling = {key: value for key, value in clean["sampling"].items() if key not in _SPELLING}
            clean = {**clean, "sampling": sampling}
        return clean

    def _opened(self, policy: RedactionPolicy) -> Redactor:
        file = self._directory / _RULES_FILE
        known: bytes | None = None
        with contextlib.suppress(OSError):
            known = file.read_bytes()
        try:
            redactor = Redactor(policy, compiled=known)
        except Exception:  # noqa: BLE001 - a spoilt file, of which Vectorscan says so in a way of its own
            known, redactor = None, Redactor(policy)
        compiled = redactor.compiled()
        if compiled is not None and compiled != known:
            with contextlib.suppress(OSError):
                write_file(file, compiled)
        return redactor


def _own_key(directory: Path) -> RedactionKey:
    """The outbox's own key, which the first process makes; where nothing can be written, a key for this process."""
    file = directory / _KEY_FILE
    with contextlib.suppress(FileNotFoundError):
        return RedactionKey.parse(file.read_text())
    text = f"edge-{secrets.token_hex(4)}:{secrets.token_hex(32)}"
    with contextlib.suppress(OSError):
        write_file(file, text.encode(), replace=False)
        text = file.read_text()
    return RedactionKey.parse(text)


def write_file(file: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file in one step; without `replace`, the first of several writers wins."""
    new = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as written:
            written.write(data)
            written.flush()
            os.fsync(written.fileno())
        if replace:
            new.replace(file)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(new, file)
    finally:
        new.unlink(missing_ok=True)


def _as_text(turn: dict[str, Any]) -> dict[str, Any]:
    """The turn with everything free in it as text."""
    observation, action, result = turn["observation"], turn["action"], turn["result"]
    told = turn | {
        "observation": {"type": observation["type"], "content": _text(observation["content"])},
        "action": action | ({"tool_args": {"text": _text(action["tool_args"])}} if "tool_args" in action else {}),
        "result": result | ({"output": _text(result["output"])} if "output" in result else {}),
    }
    if "context" in observation:
        told["observation"]["context"] = {"text": _text(observation["context"])}
    return told


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
