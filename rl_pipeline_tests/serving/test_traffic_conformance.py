"""What every adapter of the port of the traffic does, and what each counts on its own servers.

TensorZero is the real one, embedded, in front of stub backends; the gateway is a real process.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.deployment.traffic import TrafficController, TrafficRefused, TrafficUnavailable
from rl_pipeline.errors import PipelineError
from rl_pipeline.serving.traffic.direct import DirectBackend
from rl_pipeline.serving.traffic.gateways import Gateways
from rl_pipeline.serving.traffic.tensorzero import TensorZero
from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.serving.running_gateway import TOKEN, GatewayProcess
from rl_pipeline_tests.serving.states import NEW, OLD, model_at, ramping, steady
from rl_pipeline_tests.serving.stub_backend import StubBackend, stub_backends
from rl_pipeline_tests.waiting import wait_until


@dataclass
class Place:
    """An adapter in its surroundings."""

    traffic: TrafficController
    control: ServedModel
    candidate: ServedModel
    backends: list[StubBackend]
    restart: Callable[[], TrafficController]
    """Everything that could forget something is started anew."""
    answers: Callable[[int], Counter[str]]
    """Who answers so many sessions."""
    splits: bool = True

    @property
    def weights(self) -> dict[str, float]:
        (standing,) = self.traffic.standings()
        return dict(standing.weights)

    @property
    def first_share(self) -> float:
        """The smallest share that it can give to a candidate."""
        return 0.1 if self.splits else 1.0

    def wait_until_ready(self) -> None:
        wait_until(lambda: not self.traffic.standings()[0].not_ready)


def models(backends: list[StubBackend]) -> tuple[ServedModel, ServedModel]:
    old, new = (model_at(stub.name, stub.endpoint) for stub in backends)
    return old, new


def gateway_place(directory: Path, backends: list[StubBackend]) -> Iterator[Place]:
    with GatewayProcess(directory / "gateway") as process:
        traffic = Gateways([process.url], TOKEN)

        def restart() -> TrafficController:
            process.kill()
            process.start()
            return traffic

        def answers(count: int) -> Counter[str]:
            return Counter(process.chat(f"session-{number}").model for number in range(count))

        yield Place(traffic, *models(backends), backends, restart, answers)


class EmbeddedTensorZero:
    """The real TensorZero in this process; a new configuration is a new object."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.gateway: Any = None

    def reload(self) -> None:
        from tensorzero import TensorZeroError, TensorZeroGateway

        self.close()
        try:
            self.gateway = TensorZeroGateway.build_embedded(config_file=str(self.file))
        except TensorZeroError as error:
            raise PipelineError(f"TensorZero refuses the configuration: {error}") from error

    def close(self) -> None:
        if self.gateway:
            self.gateway.close()
        self.gateway = None

    def answers(self, count: int) -> Counter[str]:
        asked = {"messages": [{"role": "user", "content": "who are you?"}]}
        names = Counter[str]()
        for _ in range(count):
            answer = self.gateway.inference(function_name="agent", input=asked)
            assert answer.content[0].text == f"I am {answer.variant_name}"
            names[answer.variant_name] += 1
        return names


def tensorzero_place(directory: Path, backends: list[StubBackend]) -> Iterator[Place]:
    embedded = EmbeddedTensorZero(directory / "tensorzero.toml")

    def restart() -> TrafficController:
        embedded.reload()
        return TensorZero(embedded.file, embedded.reload)

    traffic = TensorZero(embedded.file, embedded.reload)
    yield Place(traffic, *models(backends), backends, restart, embedded.answers)
    embedded.close()


def direct_place(directory: Path, backends: list[StubBackend]) -> Iterator[Place]:
    file = directory / "serving.json"

    def answers(count: int) -> Counter[str]:
        return Counter({ServedModel.model_validate_json(file.read_bytes()).model_id: count})

    yield Place(DirectBackend(file), *models(backends), backends, lambda: DirectBackend(file), answers, splits=False)


PLACES = {"gateway": gateway_place, "tensorzero": tensorzero_place, "direct": direct_place}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with stub_backends(OLD, NEW) as stubs:
        yield from PLACES[request.param](tmp_path, stubs)


def test_a_model_may_be_registered_again_and_gets_nothing_by_it(place: Place) -> None:
    for _ in range(2):
        place.traffic.register(place.control)
    place.traffic.apply(steady(1, place.control))
    place.traffic.register(place.candidate)
    place.traffic.register(place.candidate)
    assert place.weights == {OLD: 1.0}


def test_a_state_is_followed_and_an_older_one_is_not(place: Place) -> None:
    assert [standing.generation for standing in place.traffic.standings()] == [0]
    place.traffic.apply(steady(3, place.control))
    place.traffic.apply(ramping(4, place.control, place.candidate, place.first_share))
    place.traffic.apply(steady(3, place.control))
    place.traffic.apply(ramping(4, place.control, place.candidate, place.first_share))
    (standing,) = place.traffic.standings()
    assert (standing.generation, standing.fenced) == (4, {})
    assert standing.weights[NEW] == pytest.approx(place.first_share)
    place.wait_until_ready()
    assert NEW in place.answers(100)


@pytest.mark.soak
def test_the_models_split_the_traffic_as_the_state_says(
    place: Place, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    count = soak_count(2_000, 20_000)
    if not place.splits:
        with pytest.raises(TrafficRefused, match="cannot split"):
            place.traffic.apply(ramping(1, place.control, place.candidate, 0.1))
        assert place.weights == {}
        return
    place.traffic.apply(ramping(1, place.control, place.candidate, 0.1))
    place.wait_until_ready()
    counts = place.answers(count)
    record_property("answers", count)
    record_property("of the candidate", counts[NEW])
    assert sum(counts.values()) == count
    assert abs(counts[NEW] / count - 0.1) < 4 * (0.09 / count) ** 0.5
    assert [stub.requests for stub in place.backends] == [counts[OLD], counts[NEW]]


def test_a_fence_takes_everything_at_once_for_good_and_through_a_restart(place: Place) -> None:
    place.traffic.apply(ramping(1, place.control, place.candidate, 1.0))
    place.wait_until_ready()
    assert place.answers(20) == {NEW: 20}
    assert len(place.traffic.fence(NEW, "too many errors")) == 1
    assert len(place.traffic.fence(NEW, "said again")) == 1
    assert place.answers(50) == {OLD: 50}
    place.traffic = place.restart()
    place.traffic.apply(ramping(2, place.control, place.candidate, 1.0))
    (standing,) = place.traffic.standings()
    assert (standing.generation, standing.weights) == (2, {OLD: 1.0})
    assert standing.fenced == {NEW: "too many errors"}
    assert place.answers(50) == {OLD: 50}
    with pytest.raises(TrafficRefused, match="was fenced"):
        place.traffic.register(place.candidate.model_copy(update={"base_model": "another"}))


def test_the_model_in_service_is_not_fenced(place: Place) -> None:
    place.traffic.apply(steady(1, place.control))
    with pytest.raises(TrafficRefused, match="is in service"):
        place.traffic.fence(OLD, "a mistake")
    place.wait_until_ready()
    assert place.answers(5) == {OLD: 5}


def test_a_restart_serves_what_was_served(place: Place) -> None:
    place.traffic.apply(ramping(1, place.control, place.candidate, place.first_share))
    place.wait_until_ready()
    before = place.traffic.standings()
    place.traffic = place.restart()
    assert place.traffic.standings() == before
    place.wait_until_ready()
    assert sum(place.answers(10).values()) == 10


def test_figures_of_a_model_that_nobody_knows_are_refused(place: Place) -> None:
    with pytest.raises(TrafficRefused):
        place.traffic.metrics("unknown")
    assert list(place.traffic.windows("deployment-1", NEW, OLD)) == []


# What only adapters without a memory of their own can get wrong


@pytest.mark.parametrize("kind", ["tensorzero", "direct"])
def test_what_one_process_has_fenced_another_does_not_raise(kind: str, tmp_path: Path) -> None:
    def another() -> TrafficController:
        file = tmp_path / "routing"
        return TensorZero(file, lambda: None) if kind == "tensorzero" else DirectBackend(file)

    control, candidate = model_at(OLD), model_at(NEW)
    controller, watchdog = another(), another()
    controller.apply(ramping(1, control, candidate, 1.0))
    watchdog.fence(NEW, "too many errors")
    controller.apply(ramping(2, control, candidate, 1.0))
    assert [each.standings() for each in (controller, watchdog)] == [another().standings()] * 2
    (standing,) = controller.standings()
    assert (standing.generation, standing.weights) == (2, {OLD: 1.0})
    (tmp_path / "routing.routing" / "state.json").write_text("{")
    with pytest.raises(TrafficUnavailable, match="cannot be read"):
        controller.standings()


# What only our gateways can do


def test_a_gateways_figures_and_windows_are_what_happened(tmp_path: Path) -> None:
    with (
        stub_backends(OLD, NEW) as stubs,
        GatewayProcess(tmp_path / "one", {"session_idle_seconds": 0.0}) as one,
        GatewayProcess(tmp_path / "two", {"session_idle_seconds": 0.0}) as two,
    ):
        traffic = Gateways([one.url, two.url], TOKEN)
        control, candidate = models(stubs)
        traffic.apply(ramping(1, control, candidate, 0.5))
        wait_until(lambda: not any(standing.not_ready for standing in traffic.standings()))
        stubs[1].behaviour = stub_backend.answer_500
        for number in range(10):
            one.chat(f"session-{number}")
            two.chat(f"session-{number}")
        of_old, of_new = traffic.metrics(OLD), traffic.metrics(NEW)
        assert (of_old.sessions + of_new.sessions, of_new.traffic_percentage) == (20, 50)
        assert of_new.failed_sessions == of_new.sessions == of_new.errors > 0
        assert of_old.latency_ms_p50 is not None
        wait_until(lambda: sum(window.control.sessions for window in windows(traffic)) == of_old.sessions)
        assert sum(window.candidate.errors for window in windows(traffic)) == of_new.sessions
        assert {(window.step, window.share) for window in windows(traffic)} == {(0, 0.5)}
        told = windows(traffic)
        assert told == windows(Gateways([one.url, two.url], TOKEN)), "who asks for the first time is told the same"
        one.kill()
        one.start()
        assert windows(traffic) == told, "what was heard once is not asked for again"
        assert traffic.windows("another", NEW, OLD) == []


def windows(traffic: Gateways) -> list[Any]:
    return list(traffic.windows("deployment-1", NEW, OLD))


def test_a_gateway_that_does_not_answer_is_missing_and_holds_nobody_up(tmp_path: Path) -> None:
    with stub_backends(OLD, NEW) as stubs, GatewayProcess(tmp_path / "one") as one:
        with GatewayProcess(tmp_path / "two") as gone:
            addresses = [one.url, gone.url]
        traffic = Gateways(addresses, TOKEN)
        control, candidate = models(stubs)
        traffic.apply(ramping(1, control, candidate, 0.5))
        assert traffic.fence(NEW, "errors") == [one.url]
        assert [standing.gateway for standing in traffic.standings()] == [one.url]
        with pytest.raises(TrafficUnavailable, match="does not answer"):
            Gateways([gone.url], TOKEN).standings()
        with pytest.raises(TrafficRefused, match="admin token"):
            Gateways([one.url], "a wrong token, but long").standings()
        with pytest.raises(TrafficUnavailable, match="no gateway of ours"):
            Gateways([stubs[0].endpoint], TOKEN).standings()


# What only TensorZero can get wrong


def test_a_failed_reload_is_told_and_tried_again(tmp_path: Path) -> None:
    reloads = []

    def reload() -> None:
        reloads.append(1)
        if len(reloads) == 1:
            raise PipelineError("TensorZero is restarting: wait")

    traffic = TensorZero(tmp_path / "tensorzero.toml", reload)
    control = model_at(OLD)
    with pytest.raises(TrafficUnavailable, match="restarting"):
        traffic.apply(steady(1, control))
    traffic.apply(steady(1, control))
    traffic.apply(steady(1, control))
    assert len(reloads) == 2


def test_what_tensorzero_cannot_reach_is_refused(tmp_path: Path) -> None:
    traffic = TensorZero(tmp_path / "tensorzero.toml", lambda: None)
    checkpoint = ServedModel(model_id=NEW, base_model="base", checkpoint_path="s3://models/new")
    with pytest.raises(TrafficRefused, match="has no endpoint"):
        traffic.register(checkpoint)
    with pytest.raises(TrafficRefused, match="has no endpoint"):
        traffic.apply(steady(1, checkpoint))
    assert traffic.standings()[0].generation == 0


def test_names_that_mean_something_to_toml_stay_names(tmp_path: Path) -> None:
    embedded = EmbeddedTensorZero(tmp_path / "tensorzero.toml")
    with stub_backends("a.b:c-1") as (stub,):
        traffic = TensorZero(embedded.file, embedded.reload)
        odd = model_at("a.b:c-1", stub.endpoint).model_copy(update={"upstream_name": 'quoted "name"\n[models.x]'})
        traffic.apply(steady(1, odd))
        assert embedded.answers(3) == {"a.b:c-1": 3}
        assert stub.bodies[-1]["model"] == 'quoted "name"\n[models.x]'
        embedded.close()


def test_a_backend_that_does_not_switch_keeps_the_pointer_where_it_was(tmp_path: Path) -> None:
    switched: list[str] = []

    def switch(model: ServedModel) -> None:
        if model.model_id == NEW:
            raise PipelineError("no memory: free some")
        switched.append(model.model_id)

    traffic = DirectBackend(tmp_path / "serving.json", switch)
    traffic.apply(steady(1, model_at(OLD)))
    with pytest.raises(TrafficUnavailable, match="did not switch"):
        traffic.apply(steady(2, model_at(NEW), model_at(OLD)))
    assert traffic.standings()[0].weights == {OLD: 1.0}
    assert switched == [OLD]
