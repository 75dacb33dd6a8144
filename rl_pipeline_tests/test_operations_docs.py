"""The operator's pages name only commands, settings, files and alerts that exist, and every alert is on them."""

import re
from pathlib import Path
from typing import get_args

import click
import pytest
import typer

from rl_pipeline.cli import app
from rl_pipeline.contracts import AlertKind
from rl_pipeline.settings import Settings

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ["operations.md", "scaling.md", "security.md"]
# Not ours: of the systems around it, of other services' configuration, and of examples.
FOREIGN = {"DAGSTER_POSTGRES_URL", "RL_DLQ", "RL_MODELS", "RL_REPORTS", "RL_SERVING", "RL_TRAJECTORIES", "RL_TRAINING"}


def text(page: str) -> str:
    return (DOCS / page).read_text()


def commands_in(page: str) -> set[tuple[str, ...]]:
    found = re.findall(r"rl-pipeline ((?:[a-z][a-z-]+ ?)+)", re.sub(r"\s*\n\s*", " ", text(page)))
    return {tuple(words.split()) for words in found}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_a_page_exists(page: str) -> None:
    group = typer.main.get_command(app)
    unknown = []
    for words in commands_in(page):
        command: click.Command | None = group
        for word in words:
            if not isinstance(command, click.Group):
                break
            command = command.get_command(click.Context(command), word)
        if command is None:
            unknown.append(words)
    assert unknown == []


@pytest.mark.parametrize("page", [*PAGES, "service.md", "observability.md"])
def test_every_curl_line_on_a_page_has_the_key_that_its_server_asks_for(page: str) -> None:
    lines = [line for line in text(page).splitlines() if line.lstrip().startswith("curl ")]
    asks_service = re.compile(r"AGENTGYM_RL_URL|:8100")
    asks_admin = re.compile(r"TENSORZERO_BASE_URL/admin")
    assert [line for line in lines if asks_service.search(line) and "X-API-Key" not in line] == []
    assert [line for line in lines if asks_admin.search(line) and "Authorization: Bearer" not in line] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_on_a_page_exists(page: str) -> None:
    named = set(re.findall(r"\b((?:[A-Z][A-Z0-9]+_)+[A-Z0-9]+)\b", text(page)))
    known = {name.upper() for name in Settings.model_fields}
    nats = set(re.findall(r"\$(NATS_\w+)", (DOCS.parent / "deploy" / "nats" / "nats-server.conf").read_text()))
    assert named - known - nats - FOREIGN == set()


@pytest.mark.parametrize("page", [*PAGES, "settings.md"])
def test_every_link_and_file_on_a_page_is_there(page: str) -> None:
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text(page))}
    files = set(re.findall(r"`((?:rl_pipeline|deploy|docs)/[\w./-]+)`", text(page)))
    missing = [link for link in links if link and not (DOCS / link).exists()]
    assert missing + [file for file in files if not (DOCS.parent / file).exists()] == []


def test_every_alert_says_what_to_do() -> None:
    told = re.findall(r"^\| `(\w+)` \|", text("operations.md"), re.MULTILINE)
    assert sorted(told) == sorted(get_args(AlertKind))


@pytest.mark.parametrize(
    "entry",
    [
        "A training job is stuck in the queue",
        "Trajectories are not collecting",
        "A model's deployment failed",
        "High rollback rate",
        "NATS is lost",
    ],
)
def test_every_trouble_of_the_quick_reference_has_an_entry_with_commands(entry: str) -> None:
    _, _, after = text("operations.md").partition(f"### {entry}\n")
    assert after, "the entry is missing"
    assert "```sh" in after.partition("\n### ")[0]


def test_the_files_of_the_quick_reference_are_where_the_page_says() -> None:
    root = DOCS.parent
    assert (root / "rl_pipeline/contracts/topics.json").exists()
    assert len(list((root / "rl_pipeline/contracts/schemas/agent-rl").glob("*.v1.schema.json"))) >= 5
    profile = root / "rl_pipeline/collection/agent_zero/plugin/agents/rl-trainer/prompts/agent.system.main.role.md"
    assert "never delegate upward" in profile.read_text()
    assert str(profile.relative_to(root)) in text("operations.md")
