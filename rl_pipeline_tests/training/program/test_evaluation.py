"""On which tasks a policy is measured."""

from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.environment import Task
from rl_pipeline.training.program.evaluation import further_tasks
from rl_pipeline.training.program.prompts import Prompt

WORLD = CraftingWorld()
ELSEWHERE = Prompt("other", [{"role": "user", "content": "Hello"}])


def prompts_of(tasks: list[Task]) -> list[Prompt]:
    return [Prompt(task.id, [], WORLD.name, task.setup) for task in tasks]


def test_few_held_out_tasks_are_filled_up_with_others_of_their_world_that_are_not_trained_on() -> None:
    held_out = prompts_of(WORLD.tasks(17, seed=1))
    fresh = further_tasks(held_out, [], 77)[17:]
    drawn = further_tasks(held_out, fresh[:20], 77)
    assert drawn[:17] == held_out
    assert fresh
    assert not {prompt.task for prompt in drawn[17:]} & {prompt.task for prompt in (*held_out, *fresh[:20])}
    assert len({prompt.task for prompt in drawn}) == len(drawn)


def test_every_job_is_measured_on_the_same_further_tasks() -> None:
    held_out = [prompts_of(WORLD.tasks(17, seed=seed)) for seed in (1, 2)]
    one, other = ({prompt.task for prompt in further_tasks(each, [], 77)[17:]} for each in held_out)
    assert len(one & other) >= 40
    assert one ^ other <= {prompt.task for each in held_out for prompt in each}


def test_further_tasks_are_as_hard_as_those_that_were_held_out() -> None:
    drawn = further_tasks(prompts_of(WORLD.tasks(5, seed=1, tiers=[2])), [], 40)
    assert {WORLD.task(prompt.environment_task or {}).tier for prompt in drawn} == {2}


def test_enough_held_out_tasks_and_prompts_of_no_world_stay_as_they_are() -> None:
    enough = prompts_of(WORLD.tasks(40, seed=1))
    assert further_tasks(enough, [], 30) == enough
    assert further_tasks([ELSEWHERE], [], 30) == [ELSEWHERE]
