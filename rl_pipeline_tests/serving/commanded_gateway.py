"""`rl-pipeline gateway` as people start it."""

import subprocess
from dataclasses import dataclass
from typing import Self

from rl_pipeline.embedded.ports import free_port
from rl_pipeline_tests.end_to_end.running_stack import COMMAND, user_environment
from rl_pipeline_tests.serving.running_gateway import SESSION_KEY, TOKEN, GatewayProcess


@dataclass
class CommandedGateway(GatewayProcess):
    """A gateway whose `options` are environment variables."""

    def start(self) -> Self:
        """Return when it listens; it is the only gateway that it knows of."""
        self.port = self.port or free_port()
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "TENSORZERO_ADMIN_TOKEN": TOKEN,
            "TENSORZERO_BASE_URL": self.url,
            "GATEWAY_SESSION_KEY": SESSION_KEY,
            **self.options,
        }
        with (self.directory / "gateway.log").open("ab") as log:
            self.process = subprocess.Popen(
                [COMMAND, "gateway", "--port", str(self.port), "--data", str(self.directory), "--name", "gateway-1"],
                env=user_environment(self.directory / "home", **settings),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line == f"the gateway listens on {self.url}\n", (self.directory / "gateway.log").read_text()[-2000:]
        return self
