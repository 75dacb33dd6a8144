"""A report as one page of HTML, which needs nothing else and does nothing: no script, no address outside."""

import base64
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from rl_pipeline.observability.reports.charts import draw
from rl_pipeline.observability.reports.document import UNKNOWN, Chart, Document, Items, Paragraph, Part, Picture, Table

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_NUMERIC = ' class="n"'
_NUMBER = re.compile(r"[+\-$]?\d[\d,.]*\s*(%|h|s|B|KB|MB|GB)?")


def to_page(document: Document) -> str:
    """The whole report."""
    sections = "".join(
        f"<h2>{escape(section.title)}</h2>{''.join(_part(part) for part in section.parts)}"
        for section in document.sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escape(document.title)}</title><style>{style()}</style></head><body>"
        f'<h1>{escape(document.title)}</h1><p class="lead">{escape(document.lead)}</p>{sections}</body></html>\n'
    )


def style() -> str:
    """How pages look, in the light and in the dark."""
    return files(__package__).joinpath("page.css").read_text(encoding="utf-8")


def _part(part: Part) -> str:
    match part:
        case Paragraph(text):
            return f"<p>{_text(text)}</p>"
        case Items(texts):
            return f"<ul>{''.join(f'<li>{_text(text)}</li>' for text in texts)}</ul>"
        case Table():
            return _table(part)
        case Chart():
            return f"<figure>{draw(part)}<figcaption>{escape(part.title)}</figcaption></figure>"
        case Picture(title, png):
            data = base64.b64encode(png).decode()
            return f'<figure><img alt="{escape(title)}" src="data:image/png;base64,{data}"></figure>'


def _text(text: str) -> str:
    """Escaped, with what stands between backquotes as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _table(table: Table) -> str:
    rows = "".join(
        _row(row, kind, table) for row, kind in ((table.headers, "th"), *((row, "td") for row in table.rows))
    )
    return f'<div class="wide"><table>{rows}</table></div>'


def _row(row: Sequence[str], kind: str, table: Table) -> str:
    cells = (
        f"<{kind}{_NUMERIC if _is_of_numbers(table, place) else ''}>{_text(text)}</{kind}>"
        for place, text in enumerate(row)
    )
    return f"<tr>{''.join(cells)}</tr>"


def _is_of_numbers(table: Table, place: int) -> bool:
    """Whether a column has nothing but numbers and what is not known."""
    cells = [row[place] for row in table.rows if row[place]]
    return any(map(_NUMBER.fullmatch, cells)) and all(_NUMBER.fullmatch(cell) or cell == UNKNOWN for cell in cells)
