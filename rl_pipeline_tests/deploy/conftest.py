"""The server of deploy/nats, with its accounts."""

import subprocess
from collections.abc import Iterator

import pytest

from rl_pipeline.embedded.nats_server import nats_answers, nats_server_command
from rl_pipeline.embedded.ports import LOOPBACK, free_port
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline_tests.deploy.accounts import CONFIGURATION, USERS, connect, password
from rl_pipeline_tests.waiting import wait_until


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server of deploy/nats with its streams."""
    directory = tmp_path_factory.mktemp("nats-accounts")
    port = free_port()
    environment = {
        "NATS_SERVER_NAME": "accounts",
        "NATS_LISTEN": f"{LOOPBACK}:{port}",
        "NATS_MONITORING_LISTEN": f"{LOOPBACK}:{free_port()}",
        "NATS_STORE_DIR": str(directory),
        **{f"NATS_{user.upper()}_PASSWORD": password(user) for user in USERS},
    }
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(nats_server_command(CONFIGURATION), env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or nats_answers(port, "accounts"))
        assert process.poll() is None, (directory / "log").read_text()
        with connect(f"nats://{LOOPBACK}:{port}", "admin") as admin:
            bootstrap(admin)
        yield f"nats://{LOOPBACK}:{port}"
    finally:
        process.terminate()
        process.wait()
