"""The embedded stack as a user meets it: `up`, `publish`, the UI, faults, Ctrl-C."""

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import httpx
import psutil
import pytest

from rl_pipeline.embedded.nats_server import running_nats_server
from rl_pipeline_tests.end_to_end.running_stack import RunningStack, run_command
from rl_pipeline_tests.waiting import wait_until

OWN_COMPONENTS = ["clickhouse", "code", "daemon", "gateway", "mlflow", "service", "ui", "watchdog"]
POOLS = ["ingest", "rewards", "training", "validation"]
COMPONENTS = sorted([*OWN_COMPONENTS, "nats"])
OBSERVATIONS = """{ assetOrError(assetKey: {path: ["trajectory_stream"]}) { ... on Asset {
    assetObservations(limit: 1) { metadataEntries { label ... on IntMetadataEntry { intValue } } } } } }"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    stack = RunningStack(tmp_path_factory.mktemp("home"))
    try:
        stack.wait_for_line("The UI is at")
        yield stack
    finally:
        stack.end()


def still_there(family: list[psutil.Process]) -> list[psutil.Process]:
    """Those that run; one that has ended and that nobody has asked for its exit code yet does not."""
    return [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def last_observation(stack: RunningStack) -> dict[str, int]:
    observations = stack.graphql(OBSERVATIONS)["assetOrError"].get("assetObservations")
    return (
        {entry["label"]: entry.get("intValue") for entry in observations[0]["metadataEntries"]} if observations else {}
    )


def test_up_says_of_every_component_that_it_is_ready_and_where(stack: RunningStack) -> None:
    ready = [line.split() for line in stack.lines if " ready" in line]
    assert sorted(words[0] for words in ready) == COMPONENTS
    assert {words[0]: words[2] for words in ready if words[0] in stack.record.urls} == stack.record.urls


def test_what_happens_to_the_stack_is_logged_as_json(stack: RunningStack) -> None:
    for component in ("supervisor", "watchdog"):
        lines = (stack.home / "logs" / f"{component}.log").read_text().splitlines()
        told = [json.loads(line) for line in lines if line.startswith("{")]  # a library may warn in its own way
        assert {each["component"] for each in told} == {component}
        assert all({"timestamp", "level", "logger", "message"} <= each.keys() for each in told)


def test_everything_listens_on_loopback_only(stack: RunningStack) -> None:
    family = psutil.Process(stack.process.pid).children(recursive=True)
    listening = [
        ip_address(connection.laddr.ip.removeprefix("::ffff:"))
        for process in family
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 4
    assert [address for address in listening if not address.is_loopback] == []


def test_a_published_sample_shows_as_an_observation_of_the_stream(stack: RunningStack) -> None:
    before = last_observation(stack).get("last_sequence", 0)
    published = run_command(stack.home, "publish", "--sample", "3")
    assert published.returncode == 0, published.stderr
    seen = wait_until(
        lambda: (now := last_observation(stack)).get("last_sequence", 0) >= before + 3 and now, "an observation"
    )
    assert seen["lag"] == seen["messages"] == seen["last_sequence"]
    assert (seen["erased"], seen["overrun"]) == (0, 0)
    assert seen["bytes"] > 0


def test_status_names_every_component(stack: RunningStack) -> None:
    status = run_command(stack.home, "status")
    assert status.returncode == 0, status.stderr
    assert sorted(line.split()[0] for line in status.stdout.splitlines()) == COMPONENTS


def test_a_second_up_on_the_same_directory_says_who_holds_it(stack: RunningStack) -> None:
    second = run_command(stack.home, "up")
    assert second.returncode == 1
    assert f"held by process {stack.process.pid}" in second.stderr
    assert len(second.stderr.splitlines()) == 1


def test_the_service_of_the_stack_is_well_and_asks_for_trainings(stack: RunningStack) -> None:
    """By the key in the stack's home; Dagster answers for its daemons and for the sensor that takes requests in."""
    headers = {"X-API-Key": (stack.home / "service-api.key").read_text()}
    with httpx.Client(base_url=stack.record.urls["service"], headers=headers, timeout=60) as client:

        def components() -> dict[str, str]:
            return {name: each["status"] for name, each in client.get("/health").json()["components"].items()}

        well = {"nats", "warehouse", "dagster", "mlflow", "objects"}
        wait_until(lambda: {name for name, state in components().items() if state == "ok"} >= well, "a healthy service")
        started = client.post("/training/start", json={"dataset": {"source": "clickhouse"}}).json()
        job = f"/training/{started['job_id']}/status"
        # The sensor takes it in: it is a job by then, not a message.
        wait_until(lambda: client.get(job).json()["state"] != "asked", "the sensor of requests")
        client.post(f"/training/{started['job_id']}/cancel").raise_for_status()
        wait_until(lambda: client.get(job).json()["status"] == "cancelled", "the job's end")


REPOSITORY = 'repositoryLocationName: "rl_pipeline", repositoryName: "__repository__"'
LAUNCH = """launchRun(executionParams: {
    selector: {%s, jobName: "%s", assetSelection: [{path: ["%s"]}]}, runConfigData: {},
    executionMetadata: {tags: [{key: "dagster/partition", value: "by-hand"}]}
}) { ... on LaunchRunSuccess { run { id } } }"""
ADD_JOB = """mutation { addDynamicPartition(
    repositorySelector: {%s}, partitionsDefName: "training_jobs", partitionKey: "by-hand"
) { __typename } }"""
EVENTS = """{ runOrError(runId: "%s") { ... on Run { endTime eventConnection(limit: 1000) {
    events { __typename ... on MessageEvent { timestamp } } } } } }"""


def moments(stack: RunningStack, run: str) -> dict[str, int] | None:
    """When a run that is over was queued, began to be started, and ended, in milliseconds."""
    found = stack.graphql(EVENTS % run)["runOrError"]
    events = found["eventConnection"]["events"]
    return {each["__typename"]: int(each["timestamp"]) for each in events} if found["endTime"] else None


def test_each_pool_has_a_limit_of_its_own(stack: RunningStack) -> None:
    asked = '{ instance { concurrencyLimit(concurrencyKey: "%s") { limit usingDefaultLimit } } }'
    limits = {pool: stack.graphql(asked % pool)["instance"]["concurrencyLimit"] for pool in POOLS}
    assert limits == {pool: {"limit": 1, "usingDefaultLimit": False} for pool in POOLS}


@pytest.mark.parametrize(
    ("job", "asset"),
    [("train_policy", "curated_datasets"), ("__ASSET_JOB", "policy_checkpoints")],
    ids=["by the limit of their tag", "by the limit of their pool"],
)
def test_of_two_trainings_that_a_person_launches_the_second_waits_for_the_end_of_the_first(
    stack: RunningStack, job: str, asset: str
) -> None:
    """Nobody has asked for them, so both fail: of one the asset is in no pool, and the other bears no tag."""
    stack.graphql(ADD_JOB % REPOSITORY)
    launch = LAUNCH % (REPOSITORY, job, asset)
    launched = stack.graphql(f"mutation {{ first: {launch} second: {launch} }}")
    runs = [str(launched[name]["run"]["id"]) for name in ("first", "second")]
    first, second = (wait_until(partial(moments, stack, run), "the end of a run", seconds=120) for run in runs)
    assert second["RunEnqueuedEvent"] < first["RunFailureEvent"] <= second["RunStartingEvent"]


@pytest.mark.chromium
def test_the_ui_shows_the_stream_with_its_observation(stack: RunningStack, tmp_path: Path) -> None:
    from playwright.sync_api import expect, sync_playwright

    published = run_command(stack.home, "publish", "--sample", "1")
    assert published.returncode == 0, published.stderr
    wait_until(lambda: last_observation(stack), "an observation")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        page = browser.new_page()
        page.goto(f"{stack.record.urls['ui']}/assets/trajectory_stream?view=events")
        expect(page.get_by_text("last_sequence").first).to_be_visible(timeout=60_000)
        browser.close()


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_killed_component_is_reported_restarted_and_serves_again(stack: RunningStack, name: str) -> None:
    said = len(stack.lines)
    killed = stack.record.processes[name].pid
    os.kill(killed, signal.SIGKILL)
    stack.wait_for_line(rf"^{name} +was ended by SIGKILL; restarting", after=said)
    stack.wait_for_line(rf"^{name} +ready", after=said)
    assert stack.record.processes[name].pid != killed
    published = run_command(stack.home, "publish", "--sample", "1")
    assert published.returncode == 0, published.stderr


def test_ctrl_c_during_the_start_leaves_nothing_behind(tmp_path: Path) -> None:
    stack = RunningStack(tmp_path)
    try:
        stack.wait_for_line("^nats +ready")
        family = psutil.Process(stack.process.pid).children(recursive=True)
        assert stack.interrupt() == 0
    finally:
        stack.end()
    assert still_there(family) == []
    assert not [line for line in stack.lines if line.startswith(("ui", "daemon"))], "what had not started stays so"


def test_what_is_published_while_the_pipeline_is_down_is_observed_when_it_is_back(tmp_path: Path) -> None:
    with running_nats_server(tmp_path / "nats") as nats:
        servers = {"NATS_URL": nats.url}
        assert run_command(tmp_path, "streams", "bootstrap", **servers).returncode == 0
        assert run_command(tmp_path, "publish", "--sample", "2", **servers).returncode == 0
        stack = RunningStack(tmp_path / "home", **servers)
        try:
            stack.wait_for_line("The UI is at")
            seen = wait_until(lambda: last_observation(stack), "an observation")
            assert seen["last_sequence"] == 2
            family = psutil.Process(stack.process.pid).children(recursive=True)
            assert stack.interrupt() == 0
        finally:
            stack.end()
        assert still_there(family) == []
    assert sorted(line.split()[0] for line in stack.lines if " stopped" in line) == OWN_COMPONENTS
