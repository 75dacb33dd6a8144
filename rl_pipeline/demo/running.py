"""The demo from its first line to its last."""

import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

from rl_pipeline.demo.careless import publish_carelessly, show_what_became_of_it
from rl_pipeline.demo.cycle import run_cycle
from rl_pipeline.demo.homes import FIGURES, REPORT, home_of_run, remove_earlier, show
from rl_pipeline.demo.outcome import Cycle, Outcome, check
from rl_pipeline.demo.population import Population, population_of
from rl_pipeline.demo.profile import DemoFailed, DemoProfile, settings_of_demo
from rl_pipeline.demo.report import write_report
from rl_pipeline.demo.sabotage import sabotage
from rl_pipeline.demo.scene import Scene, scene_of
from rl_pipeline.demo.telling import Telling
from rl_pipeline.embedded.stack import running_stack
from rl_pipeline.settings import Settings


def run_demo(
    settings: Settings,
    profile: DemoProfile,
    *,
    tell: Telling,
    prepare_stores: Callable[[Settings], None],
    stay: bool = False,
) -> Outcome:
    """Start a stack of its own, let agents play and learn on it, and check what came of it.

    With `stay` the stack is left running, so that people can look, until they stop it.
    """
    demos = settings.rl_pipeline_home.resolve() / "demo"
    home = home_of_run(demos, datetime.now(UTC))
    own = settings_of_demo(settings, profile, home)
    remove_earlier(demos, tell)
    started = monotonic()
    with running_stack(own, report=tell, prepare_stores=prepare_stores) as stack:
        if stack.supervisor.stop_requested.is_set():
            raise DemoFailed("interrupted")
        with scene_of(stack, tell, started) as scene, population_of(scene, profile) as agents:
            outcome = _play(scene, agents, profile)
            outcome.seconds = monotonic() - started
            write_report(scene, outcome, home / REPORT)
        (home / FIGURES).write_text(outcome.as_json())
        tell(
            f"\nIn {outcome.seconds / 60:.1f} minutes the model went from {outcome.base.rate:.1%} to "
            f"{outcome.base.rate + outcome.gain:.1%}. The report: {show(home)}"
        )
        check(outcome, profile)
        if stay:
            tell(f"\nThe UI is at {stack.addresses.ui}; Ctrl-C stops everything.")
            stack.supervisor.watch()
    return outcome


def _play(scene: Scene, agents: Population, profile: DemoProfile) -> Outcome:
    scene.say(f"Everything runs; the UI is at {scene.stack.addresses.ui}. The base model is being made and served.")
    scene.say(f"Other commands reach it with RL_PIPELINE_HOME={scene.settings.rl_pipeline_home}")
    scene.until(lambda: _serves(scene), "no model came into service", 300.0)
    outcome = Outcome(agents.measure())
    broken = publish_carelessly(agents)
    jobs: set[str] = set()
    for number in range(1, profile.cycles + 1):
        scene.say(f"Cycle {number}")
        promotion = run_cycle(number, agents, jobs)
        if number == 1:
            show_what_became_of_it(scene, broken)
        if number == profile.cycles and profile.sabotage:
            # Before the last model is measured: it shows that it serves as before, and nothing is trained meanwhile.
            outcome.taken_back = sabotage(agents)
        outcome.cycles.append(Cycle(promotion, agents.measure(promotion.model)))
    agents.check_held_out()
    return outcome


def _serves(scene: Scene) -> bool:
    """Whether the gateway has a model that answers."""
    try:
        with urllib.request.urlopen(f"{scene.stack.addresses.gateway}/health", timeout=5) as health:  # noqa: S310
            return bool(health.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
