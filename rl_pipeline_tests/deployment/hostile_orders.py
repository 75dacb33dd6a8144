"""What an operator orders in the middle of it all."""

from collections.abc import Callable

from rl_pipeline.deployment import record
from rl_pipeline.deployment.commands import Commands
from rl_pipeline_tests.deployment.states import a_model


def promote_if_good(commands: Commands) -> None:
    """A person who promotes a model has looked at it."""
    current = record.read(commands.desk.states)
    if current and current.state.rollout and current.state.rollout.candidate.startswith("good"):
        commands.promote("looks good", model_id=current.state.rollout.candidate)


def give_more(commands: Commands) -> None:
    """A person lets a candidate have more than its step has."""
    current = record.read(commands.desk.states)
    if current and current.state.rollout:
        commands.set_traffic(current.state.rollout.candidate, 40, "in a hurry")


def give_all(commands: Commands) -> None:
    """A person does not wait for the ramp: the candidate has all of the traffic, and bakes."""
    current = record.read(commands.desk.states)
    if current and current.state.rollout:
        commands.set_traffic(current.state.rollout.candidate, 100, "in a great hurry")


def end_test(commands: Commands) -> None:
    """A person ends a test that nobody needs any more."""
    current = record.read(commands.desk.states)
    if current and current.state.phase == "testing":
        commands.roll_back("it is over")


def try_again(commands: Commands) -> None:
    """A person wants to see a model once more, whatever became of it."""
    model = a_model(f"bad-{commands.now.second % 3 + 1}")
    commands.start_ab_test(
        model, 0.5, "once more", deployment_id=f"test-{commands.now.timestamp():.0f}", bake_seconds=60
    )


def take_back(commands: Commands) -> None:
    """A person wants the model back that served before."""
    current = record.read(commands.desk.states)
    if current:
        commands.roll_back("the former was better", model_id=current.state.serving)


ORDERS: list[Callable[[Commands], object]] = [
    lambda commands: commands.freeze("careful"),
    lambda commands: commands.unfreeze("go on"),
    lambda commands: commands.approve("looks good"),
    lambda commands: commands.approve("looks good"),
    lambda commands: commands.roll_back("somebody does not like it"),
    promote_if_good,
    give_more,
    give_all,
    give_all,
    give_all,
    take_back,
    try_again,
]
