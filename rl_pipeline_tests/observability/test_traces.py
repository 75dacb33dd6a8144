"""One trajectory, with everything that became of it, on a page and in a terminal."""

import json
import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rl_pipeline.cli import main
from rl_pipeline.contracts import Trajectory
from rl_pipeline.observability.trace_page import trace_page
from rl_pipeline.observability.trace_text import trace_text
from rl_pipeline.observability.traces import NoTrace, Trace, trace_of
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.observability.stored_trace import ID, MAIL, store_trace
from rl_pipeline_tests.training.job_tables import migrated_database

CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
RUNS = (
    "</pre></style></title></textarea><script>hacked=1</script>\"'><img src=x onerror=hacked=1>"
    "<svg onload=hacked=1><iframe srcdoc='<script>parent.hacked=1</script>'></iframe><a href='javascript:hacked=1'>"
    "<style>*{display:none}</style>{{7*7}}"
)
HOSTILE = f"{RUNS}<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>"


@pytest.fixture(scope="module")
def warehouse(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        store_trace(database)
        yield database


@pytest.fixture(scope="module")
def trace(warehouse: ClickHouseWarehouse) -> Trace:
    return trace_of(warehouse, ID)


def infested(value: Any, text: str, more: dict[str, str]) -> Any:
    """The value with hostile text in place of every text, and more of it in every object."""
    if isinstance(value, str):
        return text
    if isinstance(value, list):
        return [infested(each, text, more) for each in value]
    if isinstance(value, dict):
        return more | {name: infested(each, text, more) for name, each in value.items()}
    return value


def infested_trace(trace: Trace, text: str = HOSTILE) -> Trace:
    """In the document, whose objects are open, with every name that our tables have and the contract does not."""
    assert trace.reward is not None
    tables = [trace.stored, trace.reward, *trace.revisions, *trace.feedback, *trace.datasets, *trace.checkpoints]
    names = set.union(*map(set, tables)) - set(re.findall(r"\w+", json.dumps(Trajectory.model_json_schema())))
    assert {"heard_at", "created_at", "evidences"} <= names
    rows = {name: infested(deepcopy(value), text, {}) for name, value in vars(trace).items() if name != "document"}
    document = infested(deepcopy(trace.document), text, dict.fromkeys([*names, text], text))
    document["turns"][0]["action"]["tool_args"] = {text: text, "deep": {text: [text]}}
    return replace(trace, document=document, **rows)


def test_a_trace_has_turns_rewards_credit_feedback_and_what_learnt_from_it(trace: Trace) -> None:
    assert [turn["turn_id"] for turn in trace.turns] == [1, 2, 3, 4]
    assert trace.reward is not None
    assert len(trace.turn_rewards) == 4
    assert None not in trace.turn_rewards
    assert sum(reward or 0 for reward in trace.turn_rewards) == pytest.approx(trace.reward["raw_total"])
    assert {part.name for part in trace.components} == {"task_completion", "code_quality", "user_feedback"}
    assert all(part.evidence for part in trace.components)
    assert sum(trace.credits.values()) == pytest.approx(trace.reward["raw_total"])
    assert set(trace.credits) == {"agent-zero-main", "tester"}
    assert trace.redactions == {"email": 3, "github-token": 1}
    assert [one["rating"] for one in trace.feedback] == [4]
    assert [(one["dataset_id"], one["roles"]) for one in trace.datasets] == [
        ("job-7.r1", ["chosen"]),
        ("job-8.r1", ["prompt", "scored"]),
    ]
    assert [(one["id"], one["model_id"]) for one in trace.checkpoints if one["directly"]] == [
        ("job-7/final", "agent-zero-rl-v24"),
        ("job-8/final", ""),
    ]


def test_a_trace_follows_what_learnt_from_it_through_all_generations(trace: Trace) -> None:
    inherited = [one["id"] for one in trace.checkpoints if not one["directly"]]
    assert inherited == ["job-9/final", "job-10/final"], "and not what was trained from elsewhere"
    assert "job-10/final" in trace_page(trace)
    assert (
        "checkpoint: job-10/final, rloo on s3://models/job-9/final/, by descent, released as nothing"
        in trace_text(trace).splitlines()
    )


def test_the_page_tells_all_of_it_and_needs_nothing_else(trace: Trace) -> None:
    page = trace_page(trace)
    for told in (
        ID,
        "agent-zero-rl-v2.3",
        "low, high = 0, len(items) - 1",
        "1 failed, 5 passed",
        "never shrinks a span of one",
        "tester",
        "Works, but the first try hung.",
        "★★★★",
        "job-8.r1",
        "agent-zero-rl-v24",
        "mean log-probability -0.200",
        *(part.evidence.replace("'", "&#x27;").replace("<", "&lt;").replace(">", "&gt;") for part in trace.components),
    ):
        assert told in page, told
    assert page.count(f'title="redacted: {MAIL}"') == page.count(">EMAIL</mark>") >= 2
    assert MAIL not in re.sub(r'title="[^"]*"', "", page)
    assert not re.search(r"<script|<link|<img|<iframe|src=|@import|url\(|https?://", page)


def test_what_came_of_a_turn_is_not_repeated_where_the_next_one_shows_it(trace: Trace) -> None:
    assert trace_page(trace).count(", the result above</h4>") == 3


def test_no_text_becomes_an_element_wherever_it_stands(trace: Trace) -> None:
    own = set(re.findall(r"<(/?[a-z0-9]+)", trace_page(trace)))
    page = trace_page(infested_trace(trace))
    assert page.count("&lt;script&gt;") > 40
    assert set(re.findall(r"<(/?[a-z0-9]+)", page)) <= own


@pytest.mark.chromium
def test_nothing_in_a_hostile_trajectory_runs_in_a_browser(trace: Trace, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    page_file, broken_file = tmp_path / "trace.html", tmp_path / "broken.html"
    content = trace_page(infested_trace(trace))
    page_file.write_text(content)
    broken_file.write_text(content.replace("</main>", f"{RUNS}</main>"))
    unescaped = broken_file.with_name("unescaped.html")
    unescaped.write_text(RUNS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM)

        def opened(file: Path) -> tuple[bool, list[str]]:
            page, asked = browser.new_page(), []
            page.on("request", lambda request: asked.append(request.url))
            page.goto(file.as_uri(), wait_until="load")
            hacked = bool(page.evaluate("typeof hacked !== 'undefined'"))
            if file == page_file:
                assert page.locator("script, img, svg, iframe, form, object, a[href^=javascript]").count() == 0
                assert page.get_by_text("hacked=1").first.is_visible()
            page.close()
            return hacked, [url for url in asked if url != file.as_uri()]

        found = {file.stem: opened(file) for file in (page_file, broken_file, unescaped)}
        browser.close()
    assert found["trace"] == (False, [])
    assert not found["broken"][0], "the policy of the page holds where escaping would not"
    assert found["unescaped"][0], "the text above could not have run"


@pytest.mark.chromium
def test_the_page_can_be_read_in_light_and_dark_and_on_a_narrow_screen(trace: Trace, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    file = tmp_path / "trace.html"
    file.write_text(trace_page(trace))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM)
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        page.goto(file.as_uri())
        background = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(background)
        page.get_by_role("navigation").get_by_text("2 tool call: code_exe").click()
        assert page.url.endswith("#turn-2")
        assert page.locator("#turn-2").get_by_text("1 failed, 5 passed").is_visible()
        assert page.locator("mark").first.get_attribute("title") == f"redacted: {MAIL}"
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(background) != light
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()


def test_the_terminal_shows_it_in_short_and_no_text_moves_its_cursor(trace: Trace) -> None:
    told = trace_text(trace)
    for part in ("2. tool call: code_exe", "failed: exit code 1", "dataset: job-8.r1, train, as prompt, scored"):
        assert part in told
    escaping = deepcopy(trace.document)
    escaping["task_context"]["instructions"] = "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe"
    told = trace_text(replace(trace, document=escaping))
    assert "⟨U+001B⟩[2J" in told
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", told)


def test_no_name_or_text_begins_a_line_of_its_own_in_the_terminal(trace: Trace) -> None:
    own = trace_text(trace).splitlines()
    forged = trace_text(infested_trace(trace, "a\r\nreward: 1.000 raw\n\n9. response")).splitlines()
    assert len(forged) == len(own) - len(trace.credits) + 1, "all agents have the same name there"
    assert sum(line.startswith("reward: ") for line in forged) == 1


def test_what_was_not_scored_and_taught_nothing_is_shown_all_the_same(trace: Trace) -> None:
    bare = replace(trace, reward=None, revisions=[], feedback=[], datasets=[], checkpoints=[])
    assert "not scored yet" in trace_page(bare)
    assert "it is in no dataset" in trace_page(bare)
    assert "not scored yet" in trace_text(bare)


def test_an_unknown_trajectory_is_said_to_be_unknown(warehouse: ClickHouseWarehouse) -> None:
    with pytest.raises(NoTrace, match="no trajectory 'nowhere' is stored"):
        trace_of(warehouse, "nowhere")


def test_a_trajectory_in_which_something_was_left_to_redact_is_not_shown(clickhouse_url: str) -> None:
    with migrated_database(clickhouse_url) as database:
        store_trace(database)
        row = {"trajectory_id": ID, "version": 7, "problem": "EMAIL"}
        database.insert("suspicious_trajectories", pl.DataFrame([row]))
        with pytest.raises(NoTrace, match="should be redacted"):
            trace_of(database, ID)


def test_the_command_writes_the_page_or_shows_the_text(
    *,
    warehouse: ClickHouseWarehouse,
    clickhouse_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RL_PIPELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLICKHOUSE_URL", clickhouse_url)
    monkeypatch.setenv("CLICKHOUSE_DATABASE", warehouse.database)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rl-pipeline", "show", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    file = tmp_path / "trace.html"
    assert run(ID, "--html", str(file)) == (0, f"written to {file}\n", "")
    assert file.read_text() == trace_page(trace_of(warehouse, ID))
    code, shown, _ = run(ID)
    assert (code, shown.splitlines()[0]) == (0, f"trajectory {ID}")
    code, _, said = run("nowhere")
    assert code == 1
    assert said.startswith("rl-pipeline: no trajectory 'nowhere' is stored")
    assert json.dumps(said).count("\\n") == 1
