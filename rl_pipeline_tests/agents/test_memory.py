"""What agents remember within a process."""

from rl_pipeline.agents import InProcessMemory, MDPTransition


def done(state: str, task_id: str) -> MDPTransition:
    return MDPTransition(state, ["get wood"], 1.0, "Done.", "agent", task_id)


def recalled(memory: InProcessMemory, state: str) -> list[str]:
    return [one.task_id for one in memory.retrieve_relevant(state)]


def test_what_began_alike_is_recalled_the_most_alike_first_and_nothing_else() -> None:
    memory = InProcessMemory()
    for task_id, state in (("far", "Sort the numbers"), ("near", "Goal: a chair of wood"), ("same", "goal: chair")):
        memory.store_episodic(done(state, task_id))
    assert recalled(memory, "Goal: chair!") == ["same", "near"]
    assert recalled(memory, "…") == []


def test_among_equals_the_newest_are_recalled_and_the_oldest_forgotten() -> None:
    memory = InProcessMemory(capacity=4, k=3)
    for number in range(6):
        memory.store_episodic(done("Goal: chair", str(number)))
    assert recalled(memory, "Goal: chair") == ["5", "4", "3"]
    assert recalled(InProcessMemory(), "Goal: chair") == []


def test_what_lies_beyond_the_capacity_is_gone() -> None:
    memory = InProcessMemory(capacity=2)
    for number, state in enumerate(("a stool", "a chair", "a table")):
        memory.store_episodic(done(state, str(number)))
    assert recalled(memory, "stool") == []
