"""Worlds whose tasks are reasoning-gym's."""

import inspect
import json
import os
import re
import subprocess
import sys

import pytest
from reasoning_gym.factory import DATASETS

from rl_pipeline.environments.environment import InvalidTask, InvalidWorld
from rl_pipeline.environments.playing import play
from rl_pipeline.environments.reasoning import UNUSABLE, ReasoningGymWorld
from rl_pipeline.environments.recording import Recorder
from rl_pipeline.environments.worlds import WorldDefinitions, Worlds
from rl_pipeline.training.program.evaluation import further_tasks
from rl_pipeline.training.program.prompts import Prompt

OFFERED = sorted(set(DATASETS) - set(UNUSABLE))
SLOW = {"knight_swap", "quantum_lock"}
SUMS = ReasoningGymWorld("chain_sum", {"max_terms": 2, "max_digits": 1})

TOLD = """
import json, sys
from rl_pipeline.environments.reasoning import ReasoningGymWorld
told = {}
for family in json.loads(sys.argv[1]):
    items = [ReasoningGymWorld(family, {})._item(number)[1] for number in (77, 1001)]
    told[family] = [[item["question"], item["answer"]] for item in items]
print()  # some family prints dots
print(json.dumps(told))
"""


def solved(world: ReasoningGymWorld, task: object) -> str:
    return str(world._item(task.setup["number"])[1]["answer"])  # type: ignore[attr-defined]


def test_an_attempt_is_one_question_and_its_answer_is_scored_by_the_family() -> None:
    tasks = SUMS.tasks(2, seed=1)
    right, wrong = play(SUMS, tasks, lambda _: [solved(SUMS, tasks[0]), "no idea"])
    assert tasks[0].id != tasks[1].id
    assert (right.ended, right.total_reward, len(right.outcomes)) == ("goal", 1, 1)
    assert (wrong.ended, wrong.total_reward) == ("stuck", 0)
    assert solved(SUMS, tasks[1]) not in wrong.messages[-1]["content"], "the right answer is not told"


def test_an_answer_may_be_marked_within_other_words() -> None:
    [task] = SUMS.tasks(1, seed=1)
    answer = solved(SUMS, task)
    assert SUMS.score(task, f"I think <answer>1000</answer>, no: <answer> {answer} </answer>") == 1
    assert SUMS.score(task, f"<answer>1000</answer> {answer}") < 1


def test_after_the_answer_nothing_changes() -> None:
    [task] = SUMS.tasks(1, seed=1)
    environment = SUMS.open(task)
    assert environment.observe() == SUMS.question(task)
    first = environment.step(solved(SUMS, task))
    again = environment.step("1000")
    assert (again.observation, again.done, again.success) == (first.observation, True, True)
    assert (again.reward, again.accepted) == (0, False)


@pytest.mark.parametrize("family", sorted(set(OFFERED) - SLOW))
def test_every_family_that_is_offered_can_be_played_and_bears_any_answer(family: str) -> None:
    world = ReasoningGymWorld(family, {})
    [task] = world.tasks(1, seed=3)
    assert world.task(json.loads(json.dumps(task.setup))) == task
    assert world.question(task)
    for answer in ("", "no idea", "[1", "{", "1/0", "9" * 5000, "\x00", "[[1, 2], [3]]", "None", "__import__('os')"):
        assert 0 <= world.score(task, answer) <= 1


def test_questions_and_answers_are_the_same_in_every_process() -> None:
    families = json.dumps(sorted(set(OFFERED) - SLOW))
    told = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", TOLD, families],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
            ).stdout.splitlines()[-1]
        )
        for seed in ("1", "2")
    ]
    assert [family for family in told[0] if told[0][family] != told[1][family]] == []


def test_no_family_is_offered_whose_scorer_runs_the_answer_as_code() -> None:
    runs = re.compile(r"\b(eval|exec|compile|parse_expr|sympify)\(\s*(?!entry|oracle)")
    found = {
        family
        for family, (kind, _) in DATASETS.items()
        if runs.search(inspect.getsource(kind.score_answer)) or family == "composite"
    }
    unsafe = {family for family, why in UNUSABLE.items() if "code" in why}
    assert found & set(OFFERED) == set()
    assert unsafe <= found, "the search above could not fail"


@pytest.mark.parametrize("family", ["countdown", "ransom_note"])
def test_a_family_that_is_not_offered_is_refused_with_the_reason(family: str) -> None:
    with pytest.raises(InvalidWorld, match=f"{family} .* is not offered, because its"):
        ReasoningGymWorld(family, {})


@pytest.mark.parametrize("config", [{"nonsense": 1}, {"min_terms": 0}, {"min_terms": "two"}])
def test_a_configuration_that_the_family_does_not_take_is_said_to_be_wrong(config: dict[str, object]) -> None:
    with pytest.raises(InvalidWorld, match="chain_sum cannot be set up with"):
        ReasoningGymWorld("chain_sum", config).tasks(1, seed=1)


def test_an_unknown_family_is_said_to_be_wrong() -> None:
    with pytest.raises(InvalidWorld, match="atlantis cannot be set up"):
        ReasoningGymWorld("atlantis", {}).tasks(1, seed=1)


def test_a_task_of_another_configuration_is_none_of_this_world() -> None:
    [task] = SUMS.tasks(1, seed=1)
    other = ReasoningGymWorld("chain_sum", {})
    for setup in (task.setup, {"number": -1, "config": {}}, {"number": 2**32, "config": {}}, {"number": True}, {}):
        with pytest.raises(InvalidTask, match="reasoning-gym:chain_sum"):
            other.task(setup)


def test_seeds_give_different_questions_and_the_same_question_is_the_same_task() -> None:
    world = ReasoningGymWorld("chain_sum", {})
    one, other = ({task.id for task in world.tasks(50, seed=seed)} for seed in (1, 2))
    assert len(one) == len(other) == 50
    assert not one & other
    few = ReasoningGymWorld("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
    tasks = few.tasks(600, seed=1)
    assert len({task.id for task in tasks}) == len({few.question(task) for task in tasks}) < 600


def test_no_question_that_was_trained_on_is_measured_with() -> None:
    few = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    worlds = Worlds(WorldDefinitions(reasoning_gym={"chain_sum": few}))
    world = worlds.find("reasoning-gym:chain_sum")
    trained, held_out = (
        [Prompt(task.id, (), world.name, task.setup) for task in world.tasks(100, seed=seed)] for seed in (1, 2)
    )
    held_out = [prompt for prompt in held_out if prompt.task not in {each.task for each in trained}][:5]
    fresh = further_tasks(held_out, trained, 100, worlds)[5:]
    asked = {world.task(prompt.environment_task or {}).id for prompt in trained}
    assert fresh
    assert not asked & {prompt.task for prompt in fresh}


def test_an_attempt_is_a_trajectory_that_can_be_played_again() -> None:
    from datetime import UTC, datetime
    from random import Random

    tasks = SUMS.tasks(1, seed=1)
    episodes = play(SUMS, tasks, lambda _: ["7"])
    [trajectory] = Recorder(SUMS, "agent", "model").record(
        episodes, start=datetime(2026, 1, 1, tzinfo=UTC), randomness=Random(1)
    )
    told = trajectory.task_context.model_dump()
    assert told["environment"] == "reasoning-gym:chain_sum"
    assert SUMS.task(told["environment_task"]) == tasks[0]
