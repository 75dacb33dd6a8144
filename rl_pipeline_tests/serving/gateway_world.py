"""A gateway that many tests share, with models of each test alone."""

import itertools
from dataclasses import dataclass

from rl_pipeline.deployment.state import ServedModel
from rl_pipeline_tests.serving.running_gateway import GatewayProcess
from rl_pipeline_tests.serving.states import model_at, ramping, sessions_at
from rl_pipeline_tests.serving.stub_backend import StubBackend
from rl_pipeline_tests.waiting import wait_until

numbers = itertools.count(1)
"""Of generations, and of the models of a test."""


@dataclass
class World:
    """A gateway that many tests share, with models of this test alone."""

    gateway: GatewayProcess
    old: StubBackend
    new: StubBackend
    generation: int

    @property
    def control(self) -> ServedModel:
        return model_at(self.old.name, self.old.endpoint)

    @property
    def candidate(self) -> ServedModel:
        return model_at(self.new.name, self.new.endpoint)

    def ramp(self, share: float) -> None:
        """Give the candidate a share, once it is ready to take it."""
        self.generation = next(numbers)
        self.gateway.follow(
            ramping(self.generation, self.control, self.candidate, share, deployment_id=self.deployment_id)
        )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        wait_until(lambda: not {self.old.name, self.new.name} & set(self.gateway.standing()["not_ready"]))

    @property
    def deployment_id(self) -> str:
        return f"deployment-{self.new.name}"

    def session_of_candidate(self, share: float = 1.0) -> str:
        return next(sessions_at(share, deployment_id=self.deployment_id)) + f"-{self.new.name}"

    def metrics(self, model_id: str) -> dict[str, float]:
        reply = self.gateway.call("GET", f"/admin/models/{model_id}/metrics")
        assert reply.status == 200
        return dict(reply.json)
