"""The columns of the warehouse's tables, as its own catalogue has them; kept beside the migrations for whoever has to
know them without a server."""

import json
from pathlib import Path

from rl_pipeline.stores.warehouse import Warehouse

COLUMNS_FILE = Path(__file__).with_name("columns.json")

Columns = dict[str, list[dict[str, str]]]


def read_columns(warehouse: Warehouse) -> Columns:
    """Name, type and comment of every column of every table, in their order."""
    found = warehouse.query(
        """
        SELECT table, name, type, comment FROM system.columns WHERE database = {database:String}
        ORDER BY table, position
        """,
        {"database": warehouse.database},
    )
    columns: Columns = {}
    for table, name, kind, comment in found.iter_rows():
        columns.setdefault(table, []).append({"name": name, "type": kind, "comment": comment})
    return columns


def kept_columns() -> Columns:
    """What the file says."""
    found: Columns = json.loads(COLUMNS_FILE.read_text(encoding="utf-8"))
    return found


def write_columns(columns: Columns) -> None:
    """Write the file anew."""
    COLUMNS_FILE.write_text(json.dumps(columns, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
