"""A report as one page of HTML, which needs nothing else and does nothing: no script, no address outside."""

import base64
import re
from html import escape
from importlib.resources import files

from rl_pipeline.observability.reports.charts import draw
from rl_pipeline.observability.reports.document import Chart, Document, Items, Paragraph, Part, Picture, Table

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_NUMBER = re.compile(r"[+\-$]?\d[\d,.]*\s*(%|h|s|B|KB|MB|GB)?")


def to_page(document: Document) -> str:
    """The whole report."""
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    sections = "".join(
        f"<h2>{escape(section.title)}</h2>{''.join(_part(part) for part in section.parts)}"
        for section in document.sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escape(document.title)}</title><style>{style}</style></head><body>"
        f'<h1>{escape(document.title)}</h1><p class="lead">{escape(document.lead)}</p>{sections}</body></html>\n'
    )


def _part(part: Part) -> str:
    match part:
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Items(texts):
            return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
        case Table():
            return _table(part)
        case Chart():
            return f"<figure>{draw(part)}<figcaption>{escape(part.title)}</figcaption></figure>"
        case Picture(title, png):
            data = base64.b64encode(png).decode()
            return f'<figure><img alt="{escape(title)}" src="data:image/png;base64,{data}"></figure>'


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(header)}</th>" for header in table.headers)
    rows = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in table.rows)
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _cell(text: str) -> str:
    number = ' class="n"' if _NUMBER.fullmatch(text) else ""
    return f"<td{number}>{escape(text)}</td>"
