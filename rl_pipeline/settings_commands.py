"""`rl-pipeline settings`: what is set, and the reference of all that can be."""

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo

if TYPE_CHECKING:
    from rl_pipeline.settings import Settings

_HEAD = """# Settings

Every setting is an environment variable; the defaults are those of a deployed system. `rl-pipeline up`, the demo and
the tests lay the embedded profile over them: local servers, files in place of S3, the small model; what you set stays.
`rl-pipeline settings` shows what is set where it runs, and never a secret. An empty variable counts as not set.

This page is made from `rl_pipeline/settings.py` by `rl-pipeline settings --reference > docs/settings.md`.
"""
_BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "min_length": "at least {} characters"}


def settings(
    reference: Annotated[bool, typer.Option("--reference", help="All that can be set, as Markdown.")] = False,
) -> None:
    """What is set here, with the stack that runs in the home; secrets are not shown."""
    from rl_pipeline.opening import current_settings

    if reference:
        typer.echo(reference_page(), nl=False)
        return
    found = current_settings()
    for name in sorted(found.model_fields_set):
        typer.echo(f"{name.upper()}={_shown(getattr(found, name))}")


def reference_page() -> str:
    """The reference of every setting, by section."""
    from rl_pipeline.settings import Settings

    parts = [_HEAD]
    for section, names in sections(Settings).items():
        rows = [_row(name, Settings.model_fields[name]) for name in names]
        parts.append(
            "\n".join([f"## {section}\n", "| variable | default | values | meaning |", "|---|---|---|---|", *rows])
        )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def sections(model: "type[Settings]") -> Mapping[str, list[str]]:
    """The settings under the headings that they have in the source."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in inspect.getsource(model).splitlines():
        if heading := re.fullmatch(r"    # (.+)", line):
            section = heading.group(1)
        elif (field := re.match(r"    (\w+):", line)) and field.group(1) in model.model_fields:
            found.setdefault(section, []).append(field.group(1))
    return found


def _row(name: str, field: FieldInfo) -> str:
    default = "" if field.default is None else f"`{_shown(field.default)}`"
    cells = (
        f"`{name.upper()}`",
        default if default != "``" else "",
        "; ".join(_values(field)),
        field.description or "",
    )
    shown = " | ".join(re.sub(r"([|<])", r"\\\1", cell) for cell in cells)
    return f"| {shown} |"


def _values(field: FieldInfo) -> Iterator[str]:
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind is not type(None)]
    for kind in kinds:
        if get_origin(kind) is Literal:
            yield ", ".join(f"`{value}`" for value in get_args(kind))
    if SecretStr in kinds:
        yield "secret"
    elif Path in kinds:
        yield "path"
    elif bool in kinds:
        yield "`true`, `false`"
    for limit in (*field.metadata, *(extra for kind in kinds for extra in getattr(kind, "__metadata__", ()))):
        yield from _bounds(limit)


def _bounds(limit: Any) -> Iterator[str]:
    for part in (limit, *getattr(limit, "metadata", ())):
        for name, shape in _BOUNDS.items():
            if (bound := getattr(part, name, None)) is not None:
                yield shape.format(bound)


def _shown(value: object) -> str:
    if isinstance(value, SecretStr):
        return "(secret)" if value.get_secret_value() else ""
    return str(value).lower() if isinstance(value, bool) else str(value)
