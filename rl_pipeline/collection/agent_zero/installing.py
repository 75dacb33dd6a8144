"""Puts the plugin into an Agent Zero, and brings one that is there up to date."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from rl_pipeline.collection.agent_zero.earlier import CONFIG_FILE, POINTS
from rl_pipeline.collection.agent_zero.hooks import PLUGIN
from rl_pipeline.errors import PipelineError

EVENTS = {
    "agent_init": "agent_began",
    "_functions/agent/Agent/monologue/start": "monologue_began",
    "_functions/agent/Agent/monologue/end": "monologue_ended",
    "_functions/agent/Agent/get_chat_model/end": "model_chosen",
    "_functions/agent/Agent/hist_add_user_message/end": "user_said",
    "_functions/agent/Agent/hist_add_ai_response/end": "agent_said",
    "_functions/agent/Agent/hist_add_tool_result/end": "tool_returned",
    "_functions/agent/Agent/hist_add_warning/end": "warned",
    "_functions/agent/AgentContext/kill_process/end": "context_killed",
    "_functions/agent/AgentContext/remove/end": "context_removed",
    "job_loop": "minute_passed",
}
"""By extension point, what of `AgentZeroRecording` it calls."""

_FILES = Path(__file__).with_name("plugin")
_EXTENSION, _EARLIER_EXTENSION = "extension.py.txt", "earlier_extension.py.txt"
_PROFILE = "agents/rl-trainer/prompts/agent.system.main.role.md"
# Of extensions with the same file name, Agent Zero calls one only: the name must be ours alone.
_FILE_NAME = "_90_rl_pipeline.py"
_OURS = ("agents", "api", "extensions")


def install(agent_zero: Path, config: Mapping[str, Any]) -> Path:
    """Write the plugin below an Agent Zero's directory; `config` is laid over the settings that are there.

    Returns the plugin's directory; in an Agent Zero 0.9.x, which has no plugins, that of the extensions. Raises
    `PipelineError` where no Agent Zero is.
    """
    if _has(agent_zero, "agent.py", "python/helpers/extension.py") and not _has(agent_zero, "helpers/plugins.py"):
        return _install_earlier(agent_zero, config)
    if not _has(agent_zero, "agent.py", "helpers/extension.py", "helpers/plugins.py"):
        raise PipelineError(f"{agent_zero}: no Agent Zero 0.9.x or 1.x is there: name the directory of its agent.py")
    plugin = agent_zero / "usr" / "plugins" / PLUGIN
    for name in _OURS:
        shutil.rmtree(plugin / name, ignore_errors=True)
    for source in _FILES.rglob("*"):
        target = plugin / source.relative_to(_FILES)
        if source.is_file() and source.name not in (_EXTENSION, _EARLIER_EXTENSION):
            target = target.with_suffix("") if target.suffix == ".txt" else target
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    template = Template((_FILES / _EXTENSION).read_text())
    for point, event in EVENTS.items():
        file = plugin / "extensions" / "python" / point / _FILE_NAME
        file.parent.mkdir(parents=True, exist_ok=True)
        name = "".join(word.capitalize() for word in event.split("_"))
        file.write_text(template.substitute(name=name, event=event))
    if config:
        _configure(plugin / "config.json", config)
    return plugin


def _has(directory: Path, *files: str) -> bool:
    return all((directory / file).is_file() for file in files)


def _install_earlier(agent_zero: Path, config: Mapping[str, Any]) -> Path:
    if "hist_add_before" not in (agent_zero / "agent.py").read_text():
        raise PipelineError(
            f"{agent_zero}: this Agent Zero tells no extension what it adds (hist_add_before): update it"
        )
    extensions, template = agent_zero / "python" / "extensions", Template((_FILES / _EARLIER_EXTENSION).read_text())
    for point in POINTS:
        file = extensions / point / _FILE_NAME
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(template.substitute(point=point))
    (agent_zero / _PROFILE).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_FILES / _PROFILE, agent_zero / _PROFILE)
    if config:
        _configure(agent_zero / CONFIG_FILE, config)
    return extensions


def _configure(file: Path, config: Mapping[str, Any]) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**known, **config}, indent=2) + "\n")
