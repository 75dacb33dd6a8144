"""Tables and small plots for the UI, as Markdown that is short enough to be shown where it stands."""

from collections.abc import Mapping, Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[int]) -> str:
    """One bar per value, the highest for the most; nothing at all is a dot, so that a little can be seen."""
    most = max(values, default=0)
    return "".join(_BARS[(value * len(_BARS) - 1) // most] if value else "·" for value in values)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; a bar or line break inside a cell cannot break it."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines)


def ranking(name: str, counts: Mapping[str, int], shown: int = 20) -> str:
    """A table of counts, the most frequent first, and how many more there are."""
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    rest = ordered[shown:]
    more = [(f"{len(rest)} more", sum(count for _, count in rest))] if rest else []
    return table((name, "count"), [*ordered[:shown], *more]) if ordered else "none"


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
