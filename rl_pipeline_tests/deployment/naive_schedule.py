"""The control of the hostile schedules: what the obvious order does under the same faults."""

from collections.abc import Callable

from rl_pipeline.deployment import phases, record
from rl_pipeline.deployment.judging import Limits
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.stores.desired_state import StoredState
from rl_pipeline_tests.deployment.hostile_schedules import HostileSchedule
from rl_pipeline_tests.deployment.states import a_model, because


class NaiveSchedule(HostileSchedule):
    """The control: the same faults, over controllers that change the traffic and then save what they did."""

    def begin(self) -> None:
        first = phases.create(a_model("old"), because())
        self.states.swap(first.encoded(), 0)
        for gateway in self.gateways:
            gateway.state, gateway.in_service = first, first.serving

    def actors(self) -> dict[str, Callable[[], object]]:
        return {f"controller {number}": self._tick for number in range(2)}

    def violations(self) -> list[str]:
        found = record.read(self.states)
        if found is None:
            return ["the record is gone"]
        state, routed = found.state, [gateway.weights for gateway in self.gateways]
        served = {model for weights in routed for model in weights if model.startswith("bad")}
        differing = [f"{weights} differs from the record" for weights in routed if weights != state.weights]
        return [*(f"{model} serves" for model in served), *differing]

    def _tick(self) -> None:
        current = record.read(self.states)
        if current is None:
            return
        following = self._decided(current.state)
        if following is None:
            return
        for gateway in self.gateways:
            self.world.point()
            if gateway.is_up:
                gateway.state, gateway.in_service = following, following.serving
        self.states._reach()
        self.states.values.append(StoredState(following.encoded(), 1))

    def _decided(self, state: DesiredState) -> DesiredState | None:
        cause = because(at=self.now)
        if state.rollout is None:
            waiting = [each for each in self.releases.releases.values() if each.model.model_id not in state.retired]
            release = next((each for each in waiting if each.model.model_id != state.serving), None)
            if release is None:
                return None
            rollout = release.rollout(control=state.serving, now=self.now)
            return phases.start(state, release.model, rollout, cause, approved=True)
        judgement = self.judge(state.rollout, state.phase, (), self.now, mode="full", limits=Limits())
        if judgement.verdict == "roll_back":
            return phases.roll_back(state, cause)
        if judgement.verdict == "recheck":
            return phases.recheck(state, cause)
        if judgement.verdict == "advance":
            return phases.promote(state, cause) if state.phase == "baking" else phases.advance(state, cause)
        return None
