"""The running stack as its operators meet it: every line of the specification, alerts, and a kill of all of it.

One stack for all of them, and in this order: it takes a while to start, and the last one kills it.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rl_pipeline.deployment import releases as model_releases
from rl_pipeline.deployment.state import RampStep
from rl_pipeline.embedded.nats_server import running_nats_server
from rl_pipeline.opening import open_stream, open_warehouse
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline_tests.end_to_end import specified_lines as lines
from rl_pipeline_tests.end_to_end.operated_stack import FIRST, SAMPLES, SECOND, THIRD, Operated, operated_stack
from rl_pipeline_tests.end_to_end.running_stack import run_command
from rl_pipeline_tests.end_to_end.terminal import Terminal
from rl_pipeline_tests.waiting import wait_until

pytestmark = [pytest.mark.curl, pytest.mark.promtool, pytest.mark.timeout(1500)]

VALIDATION = {"benchmark_passed": True, "safety_checks_passed": True, "performance_regression": False}
COUNTERS = (
    "sum(agent_rl_trajectories_collected_total)",
    "agent_rl_trajectory_reward_count",
    "sum(agent_rl_training_jobs_total)",
    "sum(agent_rl_model_deployments_total)",
    "sum(agent_rl_model_sessions_total)",
    "sum(agent_rl_collection_messages_total)",
)


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    with operated_stack(tmp_path_factory.mktemp("operated")) as made:
        yield made


def test_the_lines_that_add_streams_run_and_bootstrap_takes_what_they_made(tmp_path: Path) -> None:
    with running_nats_server(tmp_path / "nats") as server:
        terminal = Terminal(tmp_path / "operator", {}, {}, server.url)
        for line in lines.ADD_STREAMS:
            terminal.run(line)
        assert "Messages: 0" in terminal.run(lines.STREAM_MESSAGES)
        bootstrapped = run_command(tmp_path / "home", "streams", "bootstrap", NATS_URL=server.url)
        assert bootstrapped.returncode == 0, bootstrapped.stderr
        assert "agent.rl.training.>" in bootstrapped.stdout + bootstrapped.stderr


def test_what_agents_and_the_pipeline_say_is_heard_by_the_lines_that_listen(operated: Operated) -> None:
    for name in ("trajectory", "ten trajectories"):
        operated.heard[name].hears('[#10] Received on "agent.rl.trajectory.v1"')
    operated.heard["reward"].hears(f'[#{SAMPLES}] Received on "agent.rl.reward.v1"')
    assert f"Messages: {SAMPLES}" in operated.terminal.run(lines.STREAM_INFO)
    assert operated.terminal.run(lines.STREAM_MESSAGES).strip() == f"Messages: {SAMPLES}"


def test_the_lines_about_trainings_ask_for_them_and_tell_how_they_are(operated: Operated) -> None:
    terminal = operated.terminal

    def well() -> bool:
        components = terminal.curl(lines.HEALTH).json["components"]
        return {name for name, each in components.items() if each["status"] == "ok"} == set(components)

    wait_until(well, "a service all of whose components are well")
    asked = {"algorithm": "dpo", "dataset": {"source": "clickhouse", "sample_size": 10}}
    (terminal.home / "training_config.json").write_text(json.dumps(asked))
    started = terminal.curl(lines.START)
    assert (started.status, started.json["sent_by"]) == (202, "nats")
    by_http = started.json["job_id"]

    own_id = "6f1c3a52-91b7-4f0e-8a6d-2f7d5f0b9c11"
    with terminal.listening('nats sub "agent.rl.training.request.v1"') as requests:
        terminal.run(lines.REQUEST.replace("uuid", own_id).replace("{ ... }", json.dumps(asked)))
        terminal.run(lines.MANUAL_REQUEST)
        requests.hears("[#2]")
        said = [json.loads(part.partition("\n")[2]) for part in requests.text.split("[#")[1:]]
    manual = next(each["training_job_id"] for each in said if each["requester"] == "admin-manual")

    for job in (by_http, own_id, manual):
        # A job by now, and no message any more.
        operated.is_taken_in(job)
        by_nats = json.loads(terminal.run(lines.STATUS_BY_NATS.replace("uuid", job)))
        assert by_nats["job_id"] == job
        assert operated.status(job)["requester"] == by_nats["requester"]
        operated.end(job)
    operated.heard["status"].hears('Received on "agent.rl.training.status.v1"')
    for line in (lines.HISTORY, lines.WEEK):
        assert terminal.curl(line).json == {"jobs": [], "count": 0}, "none was completed"


def test_the_lines_of_the_gateway_bring_a_model_in_and_take_the_next_one_back(operated: Operated) -> None:
    terminal, commands = operated.terminal, operated.stack.commands()
    assert terminal.curl(lines.GATEWAY_HEALTH).json["serving"] == FIRST
    registered = terminal.curl(lines.REGISTER)
    assert (registered.status, registered.json["ready"]) == (201, False)
    assert terminal.curl(lines.SPLIT).status == 409, "nobody has validated it"

    commands.test(SECOND)
    split = wait_until(lambda: (told := terminal.curl(lines.SPLIT)).status == 200 and told, "the split")
    assert (split.json["traffic_percentage"], split.json["recorded"]) == (50, True)
    wait_until(lambda: operated.stack.releases.ask_many(10)[SECOND], "an answer of the second model")
    assert terminal.curl(lines.METRICS).json["requests"] > 0
    commands.promote(SECOND)
    # It bakes until a window with a session of its own is closed.
    serving = "the second model in service"
    wait_until(
        lambda: operated.stack.releases.ask() and terminal.curl(lines.CURRENT).json["model_id"] == SECOND, serving
    )

    with terminal.listening(lines.ROLLBACKS) as rollbacks:
        commands.test(THIRD)
        switched = terminal.curl(lines.ROLL_BACK)
        assert (switched.status, switched.json["traffic_percentage"]) == (200, 100)
        operated.heard["deployed"].hears("rolled_back")
        # `grep` prints what it has found when it ends.
        assert "rolled_back" in rollbacks.end()
    assert operated.stack.releases.ask_many(10) == {SECOND: 10}
    models = terminal.curl(lines.MODELS).json["models"]
    assert {model["model_id"] for model in models} >= {SECOND}
    assert terminal.curl(lines.DEPLOYED_SINCE).json["count"] >= 1


@pytest.mark.parametrize("query", lines.PROMQL)
def test_every_query_of_the_specification_has_an_answer_that_is_a_number(operated: Operated, query: str) -> None:
    found = wait_until(lambda: operated.prometheus.query(query), query)
    assert all(value == value for _, value in found), "no answer is not a number"  # noqa: PLR0124


@pytest.mark.parametrize("line", [lines.REWARD_MEAN, lines.ERROR_RATE, lines.TREND])
def test_prometheus_is_asked_by_the_lines_as_they_are(operated: Operated, line: str) -> None:
    told = wait_until(lambda: (said := operated.terminal.curl(line)).json["data"]["result"] and said, line)
    assert (told.status, told.json["status"]) == (200, "success")
    assert all(each["metric"]["model_version"] for each in told.json["data"]["result"])


def test_a_stack_that_is_killed_goes_on_where_it_was(operated: Operated) -> None:
    stack, prometheus, terminal = operated.stack, operated.prometheus, operated.terminal
    candidate = let_in(operated)
    stack.releases.ask_many(2)
    wait_until(stack.reported, "the report on a training", seconds=200)
    prometheus.look_again()
    before = {counter: prometheus.value(counter) for counter in COUNTERS}
    generation = stack.releases.state().generation

    # Everything but the stores and the service first: what it says now is known to nobody else.
    left = ("nats", "clickhouse", "service")
    pids = [process.pid for name in left if (process := stack.stack.record.processes[name])]
    stack.kill(*left)
    asked = {"algorithm": "sft", "dataset": {"source": "clickhouse", "sample_size": 10}}
    (terminal.home / "training_config.json").write_text(json.dumps(asked))
    job = terminal.curl(lines.START).json["job_id"]
    assert operated.status(job)["state"] == "asked"
    stack.kill_left(*pids)
    wait_until(lambda: "ServiceUnreachable" in prometheus.firing(), "the alert")
    assert "ServiceUnreachable" in terminal.run(lines.ALERTS)

    stack.start()
    wait_until(lambda: "ServiceUnreachable" not in prometheus.firing(), "the end of the alert")
    wait_until(lambda: terminal.curl(lines.HEALTH).status == 200, "the service")
    prometheus.look_again()
    for counter, value in before.items():
        assert prometheus.value(counter) >= value, counter
        name = counter.removeprefix("sum(").removesuffix(")")
        assert prometheus.value(f"sum(resets({name}[1h]))") == 0, f"Prometheus takes {name} for one that began anew"
    stack.publish(3)
    prometheus.comes_to("sum(agent_rl_trajectories_collected_total)", SAMPLES + 3)

    # The rollout goes on with the sessions that it had, to its end.
    assert stack.releases.state().generation >= generation
    wait_until(lambda: stack.releases.ask_many(5) and stack.releases.state().serving == candidate, "its end", 300)
    verified = run_command(stack.home, "deployment", "verify-audit")
    assert verified.returncode == 0, verified.stdout

    # The job that only the stream knew of is taken in, and every training that ended is reported once.
    operated.is_taken_in(job)
    assert operated.status(job)["requester"] == "admin"
    operated.end(job)
    wait_until(lambda: job in stack.reported(), "the report on it", seconds=200)
    told = stack.reported()
    assert len(told) == len(set(told))


def let_in(operated: Operated) -> str:
    """A model whose canary waits for more sessions than it has had."""
    settings = operated.stack.training.settings
    plan = model_releases.RolloutPlan(
        strategy="canary",
        steps=(RampStep(share=0.5, min_seconds=1, min_samples=20),),
        bake_seconds=0,
        explanation="a test",
        measured_against=operated.stack.releases.state().serving,
    )
    with open_stream(settings) as stream, closing(open_warehouse(settings)) as tables:
        release = model_releases.Releases(tables).release(
            JetStreamLeases(stream),
            training_job_id="trained-elsewhere",
            base_model="small",
            checkpoint_path=None,
            manifest_sha256=None,
            plan=plan,
            validation=VALIDATION,
            needs_approval=False,
            shadow=False,
            now=datetime.now(UTC),
            endpoint=operated.stack.backend.endpoint,
        )
    model = release.model.model_id
    wait_until(lambda: operated.stack.releases.weights().get(model), "its rollout at the gateway")
    return model
