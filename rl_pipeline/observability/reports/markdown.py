"""A report as Markdown: short enough for the catalogue, readable as it stands by people and agents."""

from collections.abc import Iterator, Sequence

from rl_pipeline.observability.reports.document import Chart, Document, Items, Paragraph, Part, Picture, Table

_BARS = "▁▂▃▄▅▆▇█"


def to_markdown(document: Document) -> str:
    """The whole report. Charts become lines of bars; pictures stay on the page."""
    parts = [f"# {_plain(document.title)}", _plain(document.lead)]
    for section in document.sections:
        parts.append(f"## {_plain(section.title)}")
        parts += [text for part in section.parts if (text := _part(part))]
    return "\n\n".join(parts) + "\n"


def _part(part: Part) -> str:
    match part:
        case Paragraph(text):
            return _plain(text)
        case Items(texts):
            return "\n".join(f"- {_plain(text)}" for text in texts)
        case Table():
            return "\n".join(_rows(part))
        case Chart():
            return "\n".join(_chart(part))
        case Picture():
            return ""


def _rows(table: Table) -> Iterator[str]:
    for row in (table.headers, ("---",) * len(table.headers), *table.rows):
        yield f"| {' | '.join(_plain(cell).replace('|', chr(92) + '|') for cell in row)} |"


def _chart(chart: Chart) -> Iterator[str]:
    span = f", {chart.labels[0]} to {chart.labels[-1]}" if chart.labels else ""
    yield f"{_plain(chart.title)}{span}:"
    yield ""
    for series in chart.series:
        known = [value for value in series.values if value is not None]
        values = f"{min(known):.4g} to {max(known):.4g}" if known else "nothing"
        yield f"- {_plain(series.name)} `{sparkline(series.values)}` {values}"


def sparkline(values: Sequence[float | None]) -> str:
    """One bar per value between nothing and the highest; a dot where there is none."""
    most = max((value for value in values if value is not None), default=0.0)
    return "".join(
        "·" if value is None or most <= 0 else _BARS[min(int(max(value, 0.0) / most * len(_BARS)), len(_BARS) - 1)]
        for value in values
    )


def _plain(text: str) -> str:
    """One line, in which nothing from elsewhere is taken for HTML."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
