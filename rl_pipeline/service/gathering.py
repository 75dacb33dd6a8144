"""Many callers, one call: what is asked while a call runs is asked together by the next."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Gathering(Generic[Asked, Answer]):
    """Puts questions to a store in batches, one batch at a time, on a thread of its own.

    `answer` gives one answer, or the exception that is raised to its asker, for each question and in their order. What
    it raises itself is raised to all of the batch.
    """

    def __init__(self, answer: Callable[[Sequence[Asked]], Sequence[Answer | Exception]], name: str, most: int) -> None:
        self._answer = answer
        self._most = most
        self._thread = ThreadPoolExecutor(1, name)
        self._waiting: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._running: asyncio.Task[None] | None = None

    async def ask(self, question: Asked) -> Answer:
        """The answer to one question."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, answer))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return await answer

    def close(self) -> None:
        """Ask nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._settle(batch)
        finally:
            self._running = None

    async def _settle(self, batch: Sequence[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        questions = [question for question, _ in batch]
        answers: Sequence[Answer | Exception]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, questions)
        except Exception as failed:  # noqa: BLE001 - it is raised to everybody who asked
            answers = [failed] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():  # whoever asked has gone
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
