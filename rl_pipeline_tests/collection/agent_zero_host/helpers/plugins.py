"""Where Agent Zero finds plugins, and their settings."""

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent


def get_enabled_plugin_paths():
    """`usr` before what is bundled; a plugin is a directory with a plugin.yaml, and off with a `.toggle-0`."""
    found = {}
    for root in (ROOT / "usr" / "plugins", ROOT / "plugins"):
        for directory in sorted(root.iterdir()) if root.exists() else []:
            if (directory / "plugin.yaml").exists() and directory.name not in found:
                found[directory.name] = directory
    return [directory for directory in found.values() if not (directory / ".toggle-0").exists()]


def get_plugin_config(plugin_name, agent=None, project_name=None, agent_profile=None):
    return json.loads((ROOT / "usr" / "plugins" / plugin_name / "config.json").read_text())
