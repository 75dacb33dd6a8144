"""How a sabotaged model goes, as it is told."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from rl_pipeline.demo.sabotage import await_its_end

E_VALUES = {"errors": {"highest": 0.91}, "reward": {"highest": 3.4}, "feedback": {"highest": 141.2}}


class Agents:
    """After whose second round the model is out."""

    def __init__(self, reason: str, evidence: dict[str, Any]) -> None:
        self.rounds, self.opinions_told_after, self.told = 0, -1, [""]
        row = {"reason": reason, "evidence": json.dumps(evidence)}
        self.scene = SimpleNamespace(
            rows=lambda *_, **__: [row], say=self.told.append, until=lambda done, *_: done(), state=self.state
        )

    def state(self) -> Any:
        weights = {"good": 0.75, "bad": 0.25}
        retired = ("bad",) if self.rounds == 2 else ()
        return SimpleNamespace(phase="ramping", weights=weights, rollout=object(), retired=retired)

    def play_on(self) -> list[Any]:
        self.rounds += 1
        return [object()] * 64

    def tell_opinions(self) -> None:
        self.opinions_told_after = self.rounds


@pytest.mark.parametrize(
    ("reason", "carried_by"),
    [
        ("user_dissatisfaction", "feedback"),
        ("performance_degradation", "reward"),
        ("high_error_rate", "errors"),
        ("somebody ordered it", None),
    ],
)
def test_the_metric_that_carried_the_verdict_is_told(reason: str, carried_by: str | None) -> None:
    agents: Any = Agents(reason, {"e_values": E_VALUES, "explanation": "negative_share 81.0%, of the control 38.0%"})
    taken = await_its_end(agents, "bad")
    assert (taken.model, taken.reason, taken.carried_by, taken.sessions) == ("bad", reason, carried_by, 128)
    assert f"what proved it: {carried_by or 'no metric'}, negative_share 81.0%" in agents.told[-1]
    if carried_by == "feedback":
        assert agents.told[-1].endswith("e-values of the others: errors 0.91, reward 3.4")


def test_what_users_thought_of_it_is_published_like_any_opinion() -> None:
    agents: Any = Agents("user_dissatisfaction", {})
    await_its_end(agents, "bad")
    assert agents.opinions_told_after == 2
