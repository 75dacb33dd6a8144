"""What the UI shows in little."""

from rl_pipeline.assets.pictures import ranking, sparkline, table


def test_a_sparkline_tells_much_from_little_and_little_from_nothing() -> None:
    assert sparkline([0, 1, 500, 1000]) == "·▁▄█"
    assert sparkline([3, 3]) == "██"
    assert sparkline([0, 0]) == "··"
    assert sparkline([]) == ""


def test_a_cell_cannot_break_the_table() -> None:
    assert table(("a", "b"), [("x|y\nz", 1234567)]) == "| a | b |\n| --- | --- |\n| x\\|y z | 1,234,567 |"


def test_a_ranking_says_how_much_it_does_not_show() -> None:
    counts = {"rare": 1, "often": 9, "also rare": 1}
    assert ranking("rule", counts, shown=1).splitlines()[2:] == ["| often | 9 |", "| 2 more | 2 |"]
    assert ranking("rule", {}) == "none"
