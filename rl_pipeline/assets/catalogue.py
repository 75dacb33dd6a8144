"""What the catalogue says of every asset alike: whose it is, and which columns it has."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import dagster as dg

from rl_pipeline.stores.table_columns import Columns, kept_columns

OWNERS = ("team:rl-trainer",)
"""The profile that runs the loop: who is asked first."""


def table_columns(table: str) -> dict[str, Any]:
    """The metadata of an asset that is a table of the warehouse."""
    columns = [dg.TableColumn(one["name"], one["type"], one["comment"] or None) for one in _columns()[table]]
    return {"dagster/column_schema": dg.TableSchema(columns), "dagster/table_name": table}


def message_columns(schema: str) -> dict[str, Any]:
    """The metadata of an asset that is made of messages: the fields of their contract, by its schema's file."""
    file = files("rl_pipeline.contracts").joinpath("schemas", "agent-rl", schema)
    return {"dagster/column_schema": dg.TableSchema(list(_fields_of(json.loads(file.read_text(encoding="utf-8")))))}


def _fields_of(schema: Mapping[str, Any]) -> Iterator[dg.TableColumn]:
    for name, field in schema["properties"].items():
        kinds = [field, *field.get("anyOf", ())]
        kind = next((each["type"] for each in kinds if "type" in each), "object")
        yield dg.TableColumn(name, kind, field.get("description"))


@cache
def _columns() -> Columns:
    return kept_columns()
