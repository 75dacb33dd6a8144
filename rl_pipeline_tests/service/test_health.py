"""The health is told whatever a component does, and is not better than what was found."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

import aiohttp
import pytest

from rl_pipeline.service.answers import HealthAnswer
from rl_pipeline.service.health import Check, ComponentAway, ComponentPoorly, HealthDesk, gateway_check


async def well() -> str:
    return "it answers"


async def poorly() -> str:
    raise ComponentPoorly("it is slow: give it time")


async def away() -> str:
    raise ComponentAway("nobody is there: start it")


async def odd() -> str:
    raise KeyError("what nobody expected of it")


def told(checks: Mapping[str, Check]) -> HealthAnswer:
    desk = HealthDesk(checks, "1", lambda: datetime(2026, 2, 1, tzinfo=UTC))
    return asyncio.run(desk.health())


@pytest.mark.parametrize(
    ("warehouse", "other", "expected"),
    [
        (well, well, "ok"),
        (well, poorly, "degraded"),
        (well, away, "degraded"),
        (well, odd, "degraded"),
        (poorly, well, "degraded"),
        (away, well, "unavailable"),
        (odd, well, "unavailable"),
    ],
)
def test_it_is_as_well_as_what_is_behind_it(warehouse: Check, other: Check, expected: str) -> None:
    health = told({"warehouse": warehouse, "other": other})
    assert health.status == expected
    assert all(each.next_step for each in health.components.values() if each.status != "ok")


def test_a_component_that_fails_in_its_own_way_is_away_and_its_text_is_not_repeated() -> None:
    health = told({"warehouse": well, "other": odd})
    assert (health.components["warehouse"].status, health.components["other"].status) == ("ok", "away")
    assert "nobody expected" not in health.model_dump_json()


def test_where_there_is_no_gateway_none_answers() -> None:
    async def ask() -> str:
        async with aiohttp.ClientSession() as http:
            return await gateway_check(http, [])()

    with pytest.raises(ComponentAway, match="no gateway"):
        asyncio.run(ask())
