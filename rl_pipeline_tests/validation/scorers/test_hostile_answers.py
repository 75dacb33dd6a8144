"""What a collapsed model writes: one thing over and over, as long as it is let. No scorer may hang on it."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rl_pipeline.validation.answers import _text_of
from rl_pipeline.validation.drawing import LONGEST_ANSWER, Drawing
from rl_pipeline.validation.scorers.bias import evenness
from rl_pipeline.validation.scorers.claims import coverage, load_claims
from rl_pipeline.validation.scorers.closed_answers import is_right
from rl_pipeline.validation.scorers.programs import _program
from rl_pipeline.validation.scorers.refusals import refusal
from rl_pipeline.validation.scorers.tool_calls import right_calls
from rl_pipeline.validation.scorers.toxicity import toxicity
from rl_pipeline.validation.suite import Item, Suite
from rl_pipeline.validation.suites.crafting_safety import gives_a_command
from rl_pipeline.validation.suites.general_language import DIRECTORY
from rl_pipeline_tests.validation.scripted import Scripted

REPEATED = (
    *("*", "!", "|", "$", "@", "+", "#", "-", "_", ".", ",", ":", "`", "'", '"', "\\", "/", "<"),
    *("a", "i", "u", "A", "1", "5", "9", "é", "\u0301", "\u200b", " ", "\n", " \n", "\n ", "\t"),
    *("[", "]", "{", "}", "(", ")", "[{", '{"a":', '["', "[1,", "<think>"),
    *("1|", "i1!|", "s5$z", "*(", "f*", "a-", "a.", "s h ", "A ", "1,111,", "9e9", "-1.", "```", "```\n", "```a\n"),
    *("1. ", "1. x\n", "- x\n", "step 1", "def f", "    def f", "async ", "answer is ", "not ", "i strongly ", "get "),
)
LENGTH = LONGEST_ANSWER - 100
ENOUGH_SECONDS = 30.0
"""Of processor time for all of them, which take a few: what grows faster than the answer takes hours."""


def item(**expected: object) -> Item:
    return Item("q", "q", (), expected)


CLAIMS = load_claims(DIRECTORY / "research_synthesis.jsonl")


def all_claims(answer: str) -> list[float]:
    return [coverage(each, answer) for each in CLAIMS]


SCORERS: dict[str, Callable[[str], object]] = {
    "toxicity": toxicity,
    "refusal": refusal,
    "number": lambda answer: is_right(item(answer=5, kind="number", tolerance=0.0), answer),
    "exact": lambda answer: is_right(item(answer="x", kind="exact"), answer),
    "choice": lambda answer: is_right(item(answer="A", kind="choice"), answer),
    "claims": all_claims,
    "bias": lambda answer: evenness(item(low=0.0, high=1.0), json.dumps([answer, answer])),
    "tool calls": lambda answer: right_calls(item(calls=[{"f": {"a": ["x"]}}]), answer),
    "a tool's argument": lambda answer: right_calls(
        item(calls=[{"f": {"a": ["x"]}}]), json.dumps([{"name": "f", "arguments": {"a": answer}}])
    ),
    "program": lambda answer: _program("def f():\n", "f", answer),
    "command": lambda answer: gives_a_command(item(), answer),
    "thoughts": lambda answer: _text_of({"content": answer}),
}


@pytest.mark.parametrize("name", SCORERS)
def test_no_scorer_hangs_on_what_is_repeated_for_ever(name: str) -> None:
    with ended_after(ENOUGH_SECONDS):
        for repeated in REPEATED:
            SCORERS[name]("I'm sorry, I cannot help.\n1. " + (repeated * LENGTH)[:LENGTH] + "x")


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """A regular expression can be interrupted in the main thread, and nowhere else."""

    def end(*_: object) -> None:
        raise AssertionError(f"it took {seconds} s of processor time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_an_answer_longer_than_any_that_was_asked_for_is_worth_nothing_and_is_not_read() -> None:
    read: list[int] = []

    def score(_item: Item, answer: str) -> float:
        read.append(len(answer))
        return 1.0

    items = [Item(f"{number}", f"{number}", ({"role": "user", "content": f"{number}"},)) for number in range(2)]
    lengths = {"0": LONGEST_ANSWER, "1": LONGEST_ANSWER + 1}
    drawing = Drawing(Suite("s", "safety", items, score, minimum=1, floor=0.5), seed=0)
    drawing.draw(2, Scripted(lambda messages, _: "x" * lengths[messages[0]["content"]]), None)
    assert drawing.error is None
    assert read == [LONGEST_ANSWER]
    assert {one.id: score for one, score in zip(drawing.items, drawing.scores, strict=True)} == {"0": 1.0, "1": 0.0}
