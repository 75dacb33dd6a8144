"""Many who ask at once are answered by few calls, and each gets its own answer."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from rl_pipeline.service.gathering import Gathering


def test_what_is_asked_while_a_call_runs_is_asked_together_by_the_next() -> None:
    first_has_begun, go_on = threading.Event(), threading.Event()
    batches: list[int] = []

    def answer(questions: Sequence[int]) -> list[str | Exception]:
        batches.append(len(questions))
        first_has_begun.set()
        assert go_on.wait(30)
        return [ValueError(str(one)) if one == 7 else f"answer {one}" for one in questions]

    async def ask() -> list[str | BaseException]:
        gathering = Gathering[int, str](answer, "tests", most=100)
        asked = [asyncio.create_task(gathering.ask(0))]
        await asyncio.to_thread(first_has_begun.wait, 30)
        asked += [asyncio.create_task(gathering.ask(number)) for number in range(1, 50)]
        await asyncio.sleep(0)
        asked[3].cancel()  # somebody hangs up
        go_on.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        gathering.close()
        return answers

    answers = asyncio.run(ask())
    assert batches == [1, 49]
    assert isinstance(answers[3], asyncio.CancelledError)
    assert isinstance(answers[7], ValueError)
    assert [answer for answer in answers if isinstance(answer, str)] == [
        f"answer {number}" for number in range(50) if number not in (3, 7)
    ]


def test_a_call_that_fails_fails_for_its_batch_and_not_for_the_next() -> None:
    calls = 0

    def answer(questions: Sequence[int]) -> list[int | Exception]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("away")
        return list(questions)

    async def ask() -> None:
        gathering = Gathering[int, int](answer, "tests", most=100)
        with pytest.raises(RuntimeError, match="away"):
            await gathering.ask(1)
        assert await gathering.ask(2) == 2
        gathering.close()

    asyncio.run(ask())
