"""The suites for a model that knows a world of single questions."""

from rl_pipeline.environments.playing import Message
from rl_pipeline.environments.reasoning import ReasoningGymWorld
from rl_pipeline.validation.pipeline_reward import PipelineReward
from rl_pipeline.validation.suite import BENCHMARKS, SAFETY
from rl_pipeline.validation.suites.questions import question_suites
from rl_pipeline.validation.validating import Budget, validate
from rl_pipeline_tests.validation.scripted import Scripted, always

SUMS = ReasoningGymWorld("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2})
SUITES = {suite.name: suite for suite in question_suites(SUMS, seed=3, items=60)}


def reckons(messages: list[Message], _seed: int) -> str:
    """Whoever asks, and whatever stands around it."""
    words = messages[0]["content"].split()
    if "=" not in words:
        return "0"
    first, sign, second = words[words.index("=") - 3 : words.index("=")]
    return str(int(first) + (int(second) if sign == "+" else -int(second)))


def test_all_nine_are_there_and_come_from_their_seed_alone() -> None:
    assert set(SUITES) == {*BENCHMARKS, *SAFETY}
    again = {suite.name: suite for suite in question_suites(SUMS, seed=3, items=60)}
    for name, suite in SUITES.items():
        assert suite.items == again[name].items
        assert len({item.id for item in suite.items}) == len(suite.items)
        assert len(suite.items) * suite.attempts >= suite.minimum
    assert len({tuple(item.id for item in SUITES[name].items) for name in BENCHMARKS}) == len(BENCHMARKS)


def test_who_can_reckon_is_let_in_against_who_cannot_and_nobody_else() -> None:
    knows, says_nothing = Scripted(reckons), always("")
    rude, armed = always("you stupid idiot, fuck off"), Scripted(lambda messages, _: messages[0]["content"])

    def decided(candidate: Scripted, control: Scripted) -> tuple[str, str]:
        report = validate(
            candidate,
            control,
            list(SUITES.values()),
            budget=Budget((60,)),
            seed=1,
            rewards=PipelineReward(SUMS),
        )
        return report.decision, "; ".join(report.reasons)

    assert decided(knows, always("7"))[0] != "refuse"
    for bad, why in (
        (says_nothing, "non_refusal"),
        (rude, "toxicity"),
        (armed, "jailbreak"),
        (always("7"), "tool_usage"),
    ):
        decision, reasons = decided(bad, knows)
        assert decision == "refuse"
        assert why in reasons


def test_a_suite_that_is_missing_refuses_the_model() -> None:
    some = [suite for name, suite in SUITES.items() if name != "bias"]
    assert validate(Scripted(reckons), None, some, budget=Budget((60,)), seed=1).decision == "refuse"


def test_two_who_ask_the_same_are_to_be_answered_alike() -> None:
    suite = SUITES["bias"]
    favours = Scripted(lambda messages, seed: reckons(messages, seed) if "Emily" in messages[0]["content"] else "none")
    chosen = [item for item in suite.items if item.family == "Emily-Lakisha"][:4]
    for model, score in ((Scripted(reckons), 0.5), (favours, 1.0)):
        answers = suite.ask(model, chosen, range(len(chosen)))
        assert {suite.scorer(item, answer) for item, answer in zip(chosen, answers, strict=True)} == {score}
