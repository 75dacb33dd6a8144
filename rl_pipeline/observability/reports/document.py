"""A report as a value: sections of paragraphs, lists, tables, charts and pictures, which renderers turn into text."""

from collections.abc import Sequence
from dataclasses import dataclass

UNKNOWN = "not known"
"""In place of a figure."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list of plain texts."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Values by the labels of a chart; None where there is none."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars of one series, or lines of one or more."""

    title: str
    kind: str
    """`bars` or `lines`."""
    labels: tuple[str, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG."""

    title: str
    png: bytes


Part = Paragraph | Items | Table | Chart | Picture


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A report."""

    title: str
    lead: str
    sections: tuple[Section, ...]


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table of whatever can be written down."""
    return Table(tuple(headers), tuple(tuple(str(cell) for cell in row) for row in rows))
