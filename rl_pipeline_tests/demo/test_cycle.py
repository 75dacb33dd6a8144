"""How a turn of the loop finds its training."""

from types import SimpleNamespace
from typing import Any

import pytest

from rl_pipeline.demo.cycle import _play_until_asked
from rl_pipeline.demo.profile import DemoProfile

FIRST = {"job_id": "first", "trigger_reason": "threshold_reached", "watermark": 500}
DURING_THE_BAKE = {"job_id": "second", "trigger_reason": "threshold_reached", "watermark": 1100}
BY_A_PERSON = {"job_id": "by a person", "trigger_reason": "manual", "watermark": 900}


class Agents:
    """That reach the threshold as soon as they have played what is missing; of a first round a tenth is cut off."""

    def __init__(self, jobs: list[dict[str, Any]], last: int) -> None:
        self.profile = DemoProfile(episodes=480)
        self.played: list[int] = []
        self.scene = SimpleNamespace(rows=self.rows, say=lambda _: None, until=lambda done, *_: done())
        self._jobs, self._last = jobs, last

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        if "training_jobs" in sql:
            return list(self._jobs)
        return [{"n": self._last - parameters["from"]}]

    def play(self, count: int) -> list[Any]:
        self.played.append(count)
        self._last += count
        self._jobs.append({"job_id": "asked", "trigger_reason": "threshold_reached", "watermark": self._last})
        cut_off = count // 10 if len(self.played) == 1 else 0
        return [
            SimpleNamespace(success=place >= cut_off, error="" if place < cut_off else None) for place in range(count)
        ]

    def tell_opinions(self) -> None:
        pass


@pytest.mark.parametrize(
    ("jobs", "known", "last", "job_id", "played"),
    [
        ([], set(), 1, "asked", [479, 47]),
        ([FIRST], {"first"}, 800, "asked", [180, 18]),
        ([FIRST, DURING_THE_BAKE], {"first"}, 1150, "second", []),
        ([FIRST, BY_A_PERSON], {"first"}, 950, "asked", [430, 43]),
    ],
    ids=["the first", "what a canary played counts", "asked for during the bake", "another training came between"],
)
def test_what_is_missing_since_the_last_training_is_played_unless_the_next_is_asked_for(
    jobs: list[dict[str, Any]], known: set[str], last: int, job_id: str, played: list[int]
) -> None:
    agents: Any = Agents(list(jobs), last)
    assert _play_until_asked(agents, known) == job_id
    assert agents.played == played
