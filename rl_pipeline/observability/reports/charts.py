"""Charts as SVG that stands in a page by itself, in the page's own colours."""

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10

from rl_pipeline.observability.reports.document import Chart, Series

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#9c755f")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 200, 52, 10, 12, 26
_MOST_LABELS = 8


def draw(chart: Chart) -> str:
    """The chart; one without any value says so."""
    known = [value for series in chart.series for value in series.values if value is not None]
    if not known:
        return "<p>No values.</p>"
    # Bars stand on 0, also where all of them are.
    low, high = (0.0, max(known) or 1.0) if chart.kind == "bars" else (min(known), max(known))
    ticks = _ticks(low, high)
    scale = _Scale(ticks[0], ticks[-1], max(len(chart.labels), 1))
    drawn = [*_grid(ticks, scale), *_labels(chart.labels, scale)]
    for number, series in enumerate(chart.series):
        colour = COLOURS[number % len(COLOURS)]
        drawn += _bars(chart, series, scale, colour) if chart.kind == "bars" else _line(chart, series, scale, colour)
    keys = "" if len(chart.series) < 2 else f"<p>{''.join(_key(*each) for each in enumerate(chart.series))}</p>"
    named = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}"'
    return f"<svg {named}>{''.join(drawn)}</svg>{keys}"


class _Scale:
    """From values and places to the picture."""

    def __init__(self, low: float, high: float, places: int) -> None:
        self.low, self.high = low, high
        self.step = (_WIDTH - _LEFT - _RIGHT) / places

    def x(self, place: int) -> float:
        """The middle of a place."""
        return _LEFT + (place + 0.5) * self.step

    def y(self, value: float) -> float:
        """Upwards."""
        return _HEIGHT - _BOTTOM - (value - self.low) / (self.high - self.low) * (_HEIGHT - _BOTTOM - _TOP)


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers that span the values."""
    if high - low < 1e-9:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    rough = (high - low) / 4
    power = 10 ** floor(log10(rough))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough)
    first, last = floor(low / step), ceil(high / step)
    return [number * step for number in range(first, last + 1)]


def _grid(ticks: Sequence[float], scale: _Scale) -> Iterator[str]:
    for tick in ticks:
        y = scale.y(tick)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.4g}</text>'


def _labels(labels: Sequence[str], scale: _Scale) -> Iterator[str]:
    every = -(-len(labels) // _MOST_LABELS) or 1
    for place, label in enumerate(labels):
        if place % every == 0:
            yield f'<text x="{scale.x(place):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(label)}</text>'


def _bars(chart: Chart, series: Series, scale: _Scale, colour: str) -> Iterator[str]:
    for place, value in enumerate(series.values):
        if value:
            top = scale.y(value)
            yield (
                f'<rect x="{scale.x(place) - scale.step * 0.4:.1f}" y="{top:.1f}" width="{scale.step * 0.8:.1f}" '
                f'height="{scale.y(0) - top:.1f}" fill="{colour}">{_title(chart, place, series, value)}</rect>'
            )


def _line(chart: Chart, series: Series, scale: _Scale, colour: str) -> Iterator[str]:
    """A line through what there is, broken where there is nothing, and a point for each value."""
    runs: list[list[str]] = [[]]
    for place, value in enumerate(series.values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{scale.x(place):.1f},{scale.y(value):.1f}")
            yield (
                f'<circle cx="{scale.x(place):.1f}" cy="{scale.y(value):.1f}" r="2.5" fill="{colour}">'
                f"{_title(chart, place, series, value)}</circle>"
            )
    for run in runs:
        if len(run) > 1:
            yield f'<polyline points="{" ".join(run)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _title(chart: Chart, place: int, series: Series, value: float) -> str:
    return f"<title>{escape(series.name)}, {escape(chart.labels[place])}: {value:.4g}</title>"


def _key(number: int, series: Series) -> str:
    colour = COLOURS[number % len(COLOURS)]
    return f'<span class="key" style="background:{colour}"></span>{escape(series.name)}'
