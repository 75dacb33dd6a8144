"""What goes on is one episode from its first bad look to its first good one, whoever remembers it in between."""

from datetime import UTC, datetime, timedelta

import pytest

from rl_pipeline.observability.alerts.episodes import Look

NOW = datetime(2026, 3, 10, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def looks(*bad: bool | None) -> list[Look]:
    """Looks a minute apart, each remembered as text by the next; None for one that could not see."""
    made: list[Look] = []
    for place, is_bad in enumerate(bad):
        look = Look.after(made[-1].as_text() if made else None, NOW + place * MINUTE)
        if is_bad is None:
            look.could_not_see("it")
        else:
            look.found("it", is_bad)
        made.append(look)
    return made


def test_an_episode_is_counted_from_its_first_bad_look() -> None:
    last = looks(False, True, True, True)[-1].going_on["it"]
    assert (last.since, last.looks) == (NOW + MINUTE, 3)
    assert last.has_lasted(2 * MINUTE, NOW + 3 * MINUTE)
    assert not last.has_lasted(2 * MINUTE, NOW + 2 * MINUTE)


def test_a_good_look_ends_it_and_the_next_bad_one_begins_another() -> None:
    made = looks(True, True, False, True)
    assert made[2].going_on == {}
    assert made[3].going_on["it"].since == NOW + 3 * MINUTE


def test_who_could_not_see_neither_ends_nor_begins_one() -> None:
    made = looks(True, None, True)
    assert (made[1].going_on["it"].looks, made[2].going_on["it"].looks) == (1, 2)
    assert looks(None)[0].going_on == {}


@pytest.mark.parametrize("remembered", [None, "", "{}", "nonsense", "[]", '{"looked": 3, "episodes": {"it": []}}'])
def test_what_makes_no_sense_counts_for_a_first_look(remembered: str | None) -> None:
    look = Look.after(remembered, NOW)
    assert (look.looked_last, look.before) == (NOW, {})
