"""Programs: what the model wrote is run with the item's test behind walls. Items are shaped as HumanEval's."""

import json
import re
from pathlib import Path

from rl_pipeline.validation.item_files import Line, read_json_lines
from rl_pipeline.validation.sandbox.running import Limits, run_program
from rl_pipeline.validation.suite import Item, Scorer

_FENCED = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)
_INSTRUCTIONS = (
    "Complete this Python function. Answer with the whole function, with the imports that it needs, in one block of "
    "code, and with nothing else.\n\n"
)


class ProgramLine(Line):
    """One line of a file such as HumanEval's."""

    task_id: str
    prompt: str
    test: str
    """Defines `check(candidate)`."""
    entry_point: str
    canonical_solution: str | None = None


def load_programs(path: Path) -> list[Item]:
    """The items of a file in HumanEval's format."""
    return [
        Item(
            id=line.task_id,
            family=line.task_id,
            messages=({"role": "user", "content": f"{_INSTRUCTIONS}```python\n{line.prompt}\n```"},),
            expected=line.model_dump(),
        )
        for line in read_json_lines(path, ProgramLine, "task_id")
    ]


def passes_tests(limits: Limits = Limits()) -> Scorer:  # noqa: B008 - frozen
    """1 for a program that passes the item's test, else 0."""

    def score(item: Item, answer: str) -> float:
        prompt, name = item.expected["prompt"], item.expected["entry_point"]
        test = f"{item.expected['test']}\ncheck({name})"
        ended = run_program(
            _program(prompt, name, answer), test, limits, prelude=_before(prompt, name), entry_point=name
        )
        return float(ended.passed)

    return score


def _program(prompt: str, name: str, answer: str) -> str:
    """The code in the answer, in front of it what the prompt defines; a mere body is joined to the prompt."""
    fenced = _FENCED.findall(answer)
    code = max(fenced, key=len) if fenced else answer
    if re.search(rf"^[^\S\n]*(?:async )?def {re.escape(name)}\b", code, re.MULTILINE):
        return f"{_before(prompt, name)}\n{code}"
    return f"{prompt}{code}"


def _before(prompt: str, name: str) -> str:
    """Imports and helpers that stand in front of the function."""
    return re.split(rf"^(?:async )?def {re.escape(name)}\b", prompt, maxsplit=1, flags=re.MULTILINE)[0]


def replays(prelude: str, test: str, limits: Limits = Limits()) -> Scorer:  # noqa: B008 - frozen
    """1 for actions that reached the goal and do so again when they are run as a program from the start, else 0.

    The answer is what `Episodes` gives; its actions are text, and no code of the model's own. `prelude` gets the item's
    setup as `SETUP` and defines `do(action)`.
    """

    def score(item: Item, answer: str) -> float:
        attempt = json.loads(answer)
        if not attempt["success"]:
            return 0.0
        done = [f"SETUP = {dict(item.expected)!r}", prelude, *(f"do({action!r})" for action in attempt["actions"])]
        return float(run_program("", test, limits, prelude="\n".join(done)).passed)

    return score
