"""The pipeline's own reward for attempts in a world."""

from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.validation.pipeline_reward import PipelineReward
from rl_pipeline.validation.suites.embedded import embedded_suites
from rl_pipeline_tests.validation.scripted import always, crafter

SUITE = next(suite for suite in embedded_suites(items=34) if suite.name == "tool_usage")


def test_success_earns_more_than_failure_and_the_order_is_kept() -> None:
    rewards = PipelineReward(CraftingWorld())
    good, bad = (SUITE.ask(model, SUITE.items, range(34)) for model in (crafter(1.0), always("get gold")))
    earned, lost = rewards(SUITE.items, good), rewards(SUITE.items, bad)
    assert min(earned) > max(lost)
    mixed = [good[place] if place % 2 else bad[place] for place in range(34)]
    assert rewards(SUITE.items, mixed) == [earned[place] if place % 2 else lost[place] for place in range(34)]
