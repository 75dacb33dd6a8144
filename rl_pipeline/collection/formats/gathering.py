"""Records that make one trajectory together, gathered on disk: they may stand anywhere in a file of any size."""

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Self

_MADE = "CREATE TABLE records (format TEXT, name TEXT, content TEXT)"
_IN_ORDER = """
    SELECT records.format, records.name, content FROM records
    JOIN (SELECT format, name, min(rowid) AS first FROM records GROUP BY format, name) AS groups
    ON groups.format = records.format AND groups.name = records.name
    ORDER BY first, records.rowid
"""


class Gathered:
    """The records of one file, in the order in which their groups began."""

    def __init__(self) -> None:
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._database and self._directory:
            self._database.close()
            self._directory.cleanup()

    def add(self, format_name: str, group: str, record: Any) -> None:
        """Put a record with the others of its group."""
        if self._database is None:
            self._directory = tempfile.TemporaryDirectory(prefix="rl-pipeline-import-")
            self._database = sqlite3.connect(f"{self._directory.name}/records", isolation_level=None)
            self._database.execute("PRAGMA synchronous = OFF")
            self._database.execute("PRAGMA journal_mode = OFF")
            self._database.execute(_MADE)
            self._database.execute("BEGIN")
        self._database.execute("INSERT INTO records VALUES (?, ?, ?)", (format_name, group, json.dumps(record)))

    def groups(self) -> Iterator[tuple[str, list[Any]]]:
        """The format and the records of each group."""
        if self._database is None:
            return
        rows = self._database.execute(_IN_ORDER)
        for (format_name, _), found in groupby(rows, key=lambda row: row[:2]):
            yield format_name, [json.loads(content) for _, _, content in found]
