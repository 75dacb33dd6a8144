"""The whole system on one machine: NATS, the ClickHouse engine, Dagster's code server, UI and daemon, MLflow, the
gateway with its watchdog, and the HTTP service.

A server whose address the environment sets (`NATS_URL`, `CLICKHOUSE_URL` …) is somebody else's: used, not started.
"""

import contextlib
import json
import logging
import shutil
import signal
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import psutil

from rl_pipeline.embedded.gateway_secrets import gateway_secrets, make_gateway_secrets
from rl_pipeline.embedded.home import Home, HomeUnusable, hold, writing
from rl_pipeline.embedded.nats_server import nats_answers, nats_server_command, write_nats_configuration
from rl_pipeline.embedded.ports import LOOPBACK, choose_port, free_port, listens, one_stack_starts_at_a_time
from rl_pipeline.embedded.profile import embedded_profile
from rl_pipeline.embedded.redaction_keys import make_redaction_keys, redaction_keys
from rl_pipeline.embedded.service_key import make_service_key, service_key
from rl_pipeline.embedded.signing_keys import make_signing_key, signing_keys
from rl_pipeline.embedded.supervisor import Component, ComponentFailed, Supervisor
from rl_pipeline.json_logs import json_handler
from rl_pipeline.settings import Settings, child_environment

_log = logging.getLogger(__name__)

_PROBE_TIMEOUT_SECONDS = 2.0
_DAEMON_QUERY = "{ instance { daemonHealth { allDaemonStatuses { required lastHeartbeatTime } } } }"
_POOLS = ("ingest", "rewards", "training", "validation")
_TRIES_OF_A_POOL = 30
# Ctrl-C, a service manager's stop, and a closed terminal.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INSTANCE_FILE = Path(__file__).with_name("dagster.yaml")


@dataclass(frozen=True)
class Addresses:
    """Where the servers of a stack listen."""

    nats: str
    clickhouse: str
    ui: str
    mlflow: str
    gateway: str
    service: str

    def urls(self) -> dict[str, str]:
        """The addresses by the name of their component."""
        return asdict(self)


@dataclass(frozen=True)
class Stack:
    """A running stack: its settings, its addresses, and the supervisor that keeps it."""

    settings: Settings
    addresses: Addresses
    supervisor: Supervisor


@contextlib.contextmanager
def running_stack(
    settings: Settings,
    *,
    report: Callable[[str], None],
    prepare_stores: Callable[[Settings], None],
) -> Iterator[Stack]:
    """Start the stack, yield it when all of it serves, and stop it when the block ends, however it ends.

    `prepare_stores` is called once the servers answer and before Dagster starts: streams and tables come first.
    Ctrl-C, SIGTERM and a closed terminal request a stop; `Supervisor.watch` then returns.
    """
    with hold(settings.rl_pipeline_home) as home, _logging_to(home.log("supervisor")):
        for name in home.end_leftovers():
            report(f"{name:<12} was left behind by a killed stack and was ended")
            _log.warning("%s: was left behind by a killed stack and was ended", name)
        with contextlib.ExitStack() as starting:
            starting.enter_context(one_stack_starts_at_a_time())
            stack, stages = _plan(settings, home, report)
            with _stop_on_signals(stack.supervisor):
                try:
                    _start(stack, stages, prepare_stores)
                    starting.close()
                    yield stack
                finally:
                    stack.supervisor.stop()


def _start(stack: Stack, stages: list[list[Component]], prepare_stores: Callable[[Settings], None]) -> None:
    servers, *dagster = stages
    stack.supervisor.start(servers)
    if not stack.supervisor.stop_requested.is_set():
        prepare_stores(stack.settings)
    for stage in dagster:
        if not stack.supervisor.stop_requested.is_set():
            stack.supervisor.start(stage)
    if not stack.supervisor.stop_requested.is_set():
        _limit_pools(stack)


def _plan(settings: Settings, home: Home, report: Callable[[str], None]) -> tuple[Stack, list[list[Component]]]:
    """What to start in which order; nothing has been started yet, but every refusal has been made."""
    # Every port before anything is written.
    nats_port = choose_port("RL_PIPELINE_NATS_PORT", settings.rl_pipeline_nats_port, 4222)
    clickhouse_port = choose_port("RL_PIPELINE_CLICKHOUSE_PORT", settings.rl_pipeline_clickhouse_port, 8123)
    ui_port = choose_port("RL_PIPELINE_UI_PORT", settings.rl_pipeline_ui_port, 3000)
    mlflow_port = choose_port("RL_PIPELINE_MLFLOW_PORT", settings.rl_pipeline_mlflow_port, 5000)
    gateway_port = choose_port("RL_PIPELINE_GATEWAY_PORT", settings.rl_pipeline_gateway_port, 3030)
    service_port = choose_port("RL_PIPELINE_SERVICE_PORT", settings.rl_pipeline_service_port, 8100)
    servers: list[Component] = []
    beside_dagster: list[Component] = []
    nats_url, clickhouse_url = settings.nats_url, settings.clickhouse_url
    if "nats_url" not in settings.model_fields_set:
        servers.append(_nats(nats_port, home))
        nats_url = servers[-1].address
    if "clickhouse_url" not in settings.model_fields_set:
        servers.append(_clickhouse(clickhouse_port, home))
        clickhouse_url = servers[-1].address
    mlflow_url = settings.mlflow_tracking_uri
    if "mlflow_tracking_uri" not in settings.model_fields_set and Path(_program("mlflow")).exists():
        beside_dagster.append(_mlflow(settings, mlflow_port, home))
        mlflow_url = beside_dagster[-1].address
    serves = "tensorzero_base_url" not in settings.model_fields_set
    gateway_url = f"http://{LOOPBACK}:{gateway_port}" if serves else settings.tensorzero_base_url
    # Somebody else's service is called by agents, and ours runs beside it: it is this stack's own door.
    service_url = f"http://{LOOPBACK}:{service_port}"
    ui_url = f"http://{LOOPBACK}:{ui_port}"
    addresses = Addresses(nats_url, clickhouse_url, ui_url, mlflow_url, gateway_url, service_url)
    profile = embedded_profile(
        home.directory,
        nats_url=addresses.nats,
        clickhouse_url=addresses.clickhouse,
        mlflow_url=addresses.mlflow,
        gateway_url=addresses.gateway,
        ui_url=addresses.ui,
        service_url=addresses.service,
    )
    with writing(home.directory):
        make_redaction_keys(home.directory)
        make_signing_key(home.directory)
        make_gateway_secrets(home.directory)
        make_service_key(home.directory)
        keys = redaction_keys(home.directory) | signing_keys(home.directory) | gateway_secrets(home.directory)
        keys |= service_key(home.directory)
    embedded = settings.with_defaults({**profile, **keys})
    if serves:
        beside_dagster += _serving(embedded, gateway_port, home)
    beside_dagster.append(_service(embedded, service_port, home))

    def tell(component: Component, state: str) -> None:
        _log.info("%s: %s", component.name, state)
        report(f"{component.name:<12} {state:<8} {component.address}".rstrip())

    supervisor = Supervisor(
        report=tell,
        on_change=lambda pids: home.write_record(addresses.urls(), pids),
    )
    code, dagster = _dagster(embedded, home, ui_port)
    return Stack(embedded, addresses, supervisor), [servers, code, [*dagster, *beside_dagster]]


def _nats(port: int, home: Home) -> Component:
    server_name = f"rl-pipeline-{uuid4().hex[:12]}"
    configuration = write_nats_configuration(
        home.subdirectory("nats"), port=port, monitoring_port=free_port(), server_name=server_name
    )
    return Component(
        name="nats",
        command=nats_server_command(configuration),
        is_ready=lambda _: nats_answers(port, server_name),
        log=home.log("nats"),
        address=f"nats://{LOOPBACK}:{port}",
    )


def _clickhouse(port: int, home: Home) -> Component:
    url = f"http://{LOOPBACK}:{port}"
    data = str(home.subdirectory("clickhouse"))
    return Component(
        name="clickhouse",
        command=[sys.executable, "-m", "rl_pipeline.embedded.clickhouse_http", "--data", data, "--port", str(port)],
        is_ready=lambda pid: listens(pid, port) and _get(f"{url}/ping") is not None,
        log=home.log("clickhouse"),
        address=url,
    )


def _mlflow(settings: Settings, port: int, home: Home) -> Component:
    url = f"http://{LOOPBACK}:{port}"
    directory = home.subdirectory("mlflow")
    return Component(
        name="mlflow",
        command=[
            *(_program("mlflow"), "server", "--host", LOOPBACK, "--port", str(port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{directory / 'mlflow.db'}"),
            *("--artifacts-destination", str(directory / "artifacts")),
        ],
        is_ready=lambda pid: listens(pid, port) and _get(f"{url}/health") is not None,
        log=home.log("mlflow"),
        # Its own job runner would be eight more processes, and nobody asks it for jobs.
        environment=child_environment(
            settings, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false", MLFLOW_DISABLE_TELEMETRY="true"
        ),
        address=url,
    )


def _serving(settings: Settings, port: int, home: Home) -> list[Component]:
    """The gateway, and the watchdog that can take a model back when everything else is dead."""
    url = f"http://{LOOPBACK}:{port}"
    environment = child_environment(settings)
    gateway = Component(
        name="gateway",
        command=[_program("rl-pipeline"), "gateway", "--port", str(port), "--data", str(home.subdirectory("gateway"))],
        # It listens before its models are loaded, which may take long: its health says how they are.
        is_ready=lambda pid: listens(pid, port),
        log=home.log("gateway"),
        environment=environment,
        address=url,
    )
    data = home.subdirectory("watchdog")
    watchdog = Component(
        name="watchdog",
        command=[_program("rl-pipeline"), "watchdog", "--data", str(data)],
        is_ready=lambda pid: _has_looked(data / "last-look", since=psutil.Process(pid).create_time()),
        log=home.log("watchdog"),
        environment=environment,
    )
    return [gateway, watchdog]


def _service(settings: Settings, port: int, home: Home) -> Component:
    return Component(
        name="service",
        command=[_program("rl-pipeline"), "service", "--port", str(port)],
        # It serves whatever is away: its health says what is.
        is_ready=lambda pid: listens(pid, port),
        log=home.log("service"),
        environment=child_environment(settings),
        address=f"http://{LOOPBACK}:{port}",
    )


def _has_looked(heartbeat: Path, since: float) -> bool:
    return heartbeat.exists() and heartbeat.stat().st_mtime >= since


def _dagster(settings: Settings, home: Home, ui_port: int) -> list[list[Component]]:
    """The code server first: the UI and the daemon both load their code location from it."""
    instance = settings.dagster_home or home.subdirectory("dagster")
    if not instance.is_dir():
        raise HomeUnusable(f"DAGSTER_HOME={instance} is no directory: make it, or unset DAGSTER_HOME")
    code_port = free_port()
    workspace = home.subdirectory("dagster") / "workspace.yaml"
    with writing(workspace.parent):
        if settings.dagster_home is None:
            shutil.copyfile(_INSTANCE_FILE, instance / "dagster.yaml")
        # A fixed location name: Dagster keys the state of sensors and schedules by it, and the port changes.
        workspace.write_text(
            f"load_from:\n  - grpc_server: {{host: {LOOPBACK}, port: {code_port}, location_name: rl_pipeline}}\n"
        )
    environment = child_environment(settings, DAGSTER_HOME=str(instance.resolve()))
    ui = f"http://{LOOPBACK}:{ui_port}"

    def component(name: str, command: list[str], is_ready: Callable[[int], bool], address: str = "") -> Component:
        return Component(name, command, is_ready, home.log(name), environment, address)

    code_server = component(
        "code",
        [
            *(_program("dagster"), "api", "grpc", "--module-name", "rl_pipeline.definitions"),
            *("--host", LOOPBACK, "--port", str(code_port), "--use-python-environment-entry-point"),
        ],
        lambda pid: listens(pid, code_port),
        f"grpc://{LOOPBACK}:{code_port}",
    )
    webserver = component(
        "ui",
        [_program("dagster-webserver"), "--host", LOOPBACK, "--port", str(ui_port), "--workspace", str(workspace)],
        lambda pid: listens(pid, ui_port) and _get(f"{ui}/server_info") is not None,
        ui,
    )
    daemon = component(
        "daemon",
        [_program("dagster-daemon"), "run", "--workspace", str(workspace)],
        lambda pid: _daemons_have_been_heard(ui, since=psutil.Process(pid).create_time()),
    )
    return [[code_server], [webserver, daemon]]


def _program(name: str) -> str:
    """A program of this Python environment, whether or not the environment is activated."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def _limit_pools(stack: Stack) -> None:
    """One run at a time per pool. The instance's default limit alone lets the first runs through all at once.

    Raises `ComponentFailed`.
    """
    ui, stop_requested = stack.addresses.ui, stack.supervisor.stop_requested
    for pool in _POOLS:
        mutation = json.dumps({"query": f'mutation {{ setConcurrencyLimit(concurrencyKey: "{pool}", limit: 1) }}'})
        for _ in range(_TRIES_OF_A_POOL):
            answer = _get(f"{ui}/graphql", mutation.encode())
            if answer is not None and json.loads(answer) == {"data": {"setConcurrencyLimit": True}}:
                break
            if stop_requested.wait(1):
                return
        else:
            raise ComponentFailed(f"Dagster at {ui} does not limit its pool {pool}: see the log of the ui, start again")


def _get(url: str, body: bytes | None = None) -> bytes | None:
    """The answer of a loopback server, or None while it does not give one."""
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_PROBE_TIMEOUT_SECONDS) as answer:  # noqa: S310 - loopback
            return bytes(answer.read())
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def _daemons_have_been_heard(ui: str, since: float) -> bool:
    """Dagster calls a daemon healthy long after its last heartbeat: only one of this start counts."""
    answer = _get(f"{ui}/graphql", json.dumps({"query": _DAEMON_QUERY}).encode())
    if answer is None:
        return False
    statuses = json.loads(answer)["data"]["instance"]["daemonHealth"]["allDaemonStatuses"]
    return all((status["lastHeartbeatTime"] or 0) >= since for status in statuses if status["required"])


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """What the stack itself does is kept beside the logs of its components."""
    with path.open("a") as stream:
        handler, level = json_handler("supervisor", stream), _log.level
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
        try:
            yield
        finally:
            _log.removeHandler(handler)
            _log.setLevel(level)


@contextlib.contextmanager
def _stop_on_signals(supervisor: Supervisor) -> Iterator[None]:
    def request_stop(_number: int, _frame: object) -> None:
        supervisor.stop_requested.set()

    previous = {number: signal.signal(number, request_stop) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
