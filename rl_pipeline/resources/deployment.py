"""How this deployment validates and releases models, as a Dagster resource."""

from datetime import datetime
from pathlib import Path

import dagster as dg
from pydantic import Field

from rl_pipeline.deployment.admission import RolloutTerms
from rl_pipeline.deployment.announcing import announcer
from rl_pipeline.deployment.audit import WarehouseAudit
from rl_pipeline.deployment.controller import Controller
from rl_pipeline.deployment.desk import Desk
from rl_pipeline.deployment.judging import judge
from rl_pipeline.deployment.limits import Limits
from rl_pipeline.deployment.outcomes import windows_of
from rl_pipeline.deployment.releases import Releases
from rl_pipeline.deployment.state import Rollout
from rl_pipeline.deployment.traffic import TrafficController
from rl_pipeline.deployment.windows import Clock, Window, observed_seconds
from rl_pipeline.environments.environment import World
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.policy_file import read_keys
from rl_pipeline.serving.traffic.choosing import TrafficChoice
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.validation.suite import Suite
from rl_pipeline.validation.suites.choosing import suites_for


class DeploymentResource(dg.ConfigurableResource[None]):
    """The settings of validation and release; secrets come by variable, because the UI shows a resource's values."""

    gateways: list[str] = Field(description="Addresses of the gateways.")
    admin_token: str = Field("", description="The token of their admin API.")
    session_key: str = Field("", description="<version>:<secret>, under which they store sessions, and earlier ones.")
    session_idle_seconds: float = Field(60, description="A session of theirs that is silent so long has ended.")
    traffic_controller: str = Field("gateways", description="What splits the traffic: gateways, tensorzero or direct.")
    traffic_command: str | None = Field(None, description="What brings a change of the last two into service.")
    traffic_directory: str = Field(description="Where they are told what to serve.")
    initial_traffic: float = Field(0.10, description="A canary's first share of the traffic.")
    cautious_traffic: float = Field(0.05, description="The same where it is hardly better than the model in service.")
    ramp_hours: float = Field(4, description="The least time from its first share to all of the traffic.")
    step_samples: list[int] = Field([50, 100, 150], description="Sessions that each of its shares takes at least.")
    bake_hours: float = Field(24, description="How long the old model is kept warm.")
    rule: str = Field("evidence", description="evidence, or the literal thresholds.")
    strategy: str = Field("by_improvement", description="by_improvement, or canary for every model.")
    reward_maturity_minutes: float = Field(30, description="So soon after its session began a reward is scored.")
    settling_seconds: float = Field(10, description="So long an outcome may take from a gateway into the stream.")
    needs_approval: bool = Field(False, description="A person approves each model before it gets any traffic.")
    error_rate: float = Field(0.05, description="Error rate that the plain rule forbids.")
    reward_drop: float = Field(0.05, description="Drop of the mean reward that it forbids.")
    endpoint: str | None = Field(
        None, description="A server that knows every model by its training job; else checkpoints."
    )
    suites: str | None = Field(None, description="A directory of suites of your own.")
    items: int = Field(800, description="The most items that one suite draws.")
    inspect_file: str | None = Field(None, description="A file of inspect-ai's tasks that are suites.")
    unprobed: str = Field("ask", description="ask a person about a reward that cannot be probed, or accept it.")
    work_directory: str = Field(description="Where models are kept that are served or validated.")

    def traffic(self) -> TrafficController:
        """What splits the traffic."""
        return self._choice().open()

    def limits(self) -> Limits:
        """What the plain rule forbids."""
        return Limits(error_rate=self.error_rate, reward_drop=self.reward_drop)

    def session_keys(self) -> tuple[RedactionKey, ...]:
        """What the gateways store sessions under. Raises `InvalidPolicy`."""
        return read_keys(self.session_key)

    def clock(self) -> Clock:
        """How long is waited for what came of sessions."""
        observed = observed_seconds(self.session_idle_seconds)
        return Clock(observed, self.settling_seconds, self.reward_maturity_minutes * 60)

    def desk(self, stream: JetStream, tables: Warehouse) -> Desk:
        """Where the desired state is changed."""
        announce = announcer(stream, self._choice().place())
        return Desk(JetStreamDesiredStates(stream), self.traffic(), WarehouseAudit(tables), announce)

    def controller(self, stream: JetStream, tables: Warehouse) -> Controller:
        """What moves rollouts on."""
        return Controller(
            self.desk(stream, tables),
            Releases(tables),
            lambda rollout, now: self.windows(tables, rollout, now),
            judge,
            self.limits(),
        )

    def windows(self, tables: Warehouse, rollout: Rollout, now: datetime) -> list[Window]:
        """What sessions of a rollout came to, as far as it is known for good."""
        return windows_of(tables, rollout, now, clock=self.clock(), session_keys=self.session_keys())

    def terms(self) -> RolloutTerms:
        """How models are let in."""
        first, second, third = self.step_samples
        return RolloutTerms(
            initial_traffic=self.initial_traffic,
            cautious_traffic=self.cautious_traffic,
            ramp_hours=self.ramp_hours,
            step_samples=(first, second, third),
            bake_hours=self.bake_hours,
            rule="literal" if self.rule == "literal" else "evidence",
            always_canary=self.strategy == "canary",
            needs_approval=self.needs_approval,
            endpoint=self.endpoint,
            splits=self._choice().splits,
        )

    def suites_directory(self) -> Path | None:
        """Where suites of one's own are."""
        return Path(self.suites) if self.suites else None

    def validation_suites(self, world: World | None) -> list[Suite]:
        """What a model is validated by that may know nothing but a `world`. Raises what `suites_for` raises."""
        file = Path(self.inspect_file) if self.inspect_file else None
        return suites_for(world, self.suites_directory(), items=self.items, inspect_file=file)

    def looks(self) -> tuple[int, ...]:
        """How many items of a suite are scored by the end of each look."""
        return (self.items // 4, self.items // 2, self.items)

    def models(self) -> Path:
        """Where fetched models are kept."""
        return Path(self.work_directory) / "models"

    def _choice(self) -> TrafficChoice:
        return TrafficChoice(
            self.traffic_controller,  # type: ignore[arg-type]  # the settings have checked it
            self.gateways,
            self.admin_token,
            Path(self.traffic_directory),
            self.traffic_command,
            self.endpoint,
        )
