"""The archive: redacted trajectories as Parquet files by day, for 90 days, and back into the warehouse.

An object is named `day=<day>/<rows>-<fingerprint>.parquet`: the name says whether it is the day's present form. A day
that has changed gets a new object before the older ones go, so there is always one to read. Where a day has several,
each row counts once: the table keeps the newest version of a trajectory.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING

from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion.archive_files import downloaded, read_frames, temporary_file, write_frames
from rl_pipeline.ingestion.erased_rows import delete_rows
from rl_pipeline.ingestion.holding import datasets_holding
from rl_pipeline.ingestion.judging import Erasures
from rl_pipeline.ingestion.tombstones import read_erasures, refuse_unrecognizable
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.warehouse import Warehouse

if TYPE_CHECKING:
    import polars as pl

HOT = timedelta(days=30)
"""How long a row stays in the warehouse, and a message and its claim in the stream and the raw store."""
ARCHIVED = timedelta(days=90)
# From then on the warehouse has less of a day than its archive: its first rows expire on the thirtieth.
_COMPLETE = timedelta(days=29)

_KEY = re.compile(r"day=(\d{4}-\d{2}-\d{2})/[^/]+\.parquet")
# The ids of a query travel in its address, which has a limit.
_IDS_PER_QUERY = 500
_SMALL_BLOCKS = {"max_block_size": 512, "max_threads": 1}
_FROM_NOT_ERASED = """
    FROM (SELECT * FROM trajectories FINAL WHERE toDate(stream_time) BETWEEN {first:Date} AND {last:Date}) AS stored
    LEFT ANY JOIN (SELECT user, max(covers_until) AS erased_until FROM erasures GROUP BY user) AS erased USING (user)
    WHERE stored.stream_time > erased_until
"""


class NotArchived(PipelineError):
    """Days that were asked for are not in the archive."""


@dataclass(frozen=True)
class ArchiveReport:
    """What was written, with its rows, and which days the archive had already."""

    written: Mapping[date, int]
    unchanged: tuple[date, ...]


@dataclass(frozen=True)
class RestoreReport:
    """How many rows came back of each day, and how many did not."""

    restored: Mapping[date, int]
    erased: int
    """Rows whose users were erased."""
    outdated: int
    """Rows that the ledger does not call accepted any more, or that were judged anew or stored anew since."""


def archive_days(warehouse: Warehouse, objects: Objects, now: datetime) -> ArchiveReport:
    """Write every day whose rows are not in the archive in their present form. Doing it again writes nothing.

    A day whose rows have begun to expire is written only if the archive has nothing of it. Memory does not grow with
    the size of a day.
    """
    written: dict[date, int] = {}
    uploaded: dict[date, str] = {}
    while True:
        erasures = read_erasures(warehouse)
        unchanged: list[date] = []
        forms = _present_forms(warehouse, now)
        for day in uploaded.keys() - forms.keys():
            # Everybody in it was erased while it was written.
            objects.delete(uploaded.pop(day))
            del written[day]
        present = _keys_by_day(objects)
        for day, key in forms.items():
            others = present.get(day, [])
            if others and now.date() - day >= _COMPLETE:
                unchanged.append(day)
                continue
            if key in others:
                unchanged.append(day)
            else:
                rows = _write_day(warehouse, objects, day, key)
                if not rows:
                    continue
                written[day], uploaded[day] = rows, key
            for other in others:
                if other != key:
                    objects.delete(other)
        # Who was erased meanwhile may be in what was written: their days have another form now.
        if read_erasures(warehouse) == erasures:
            return ArchiveReport(written, tuple(day for day in unchanged if day not in written))


def restore_days(
    warehouse: Warehouse,
    objects: Objects,
    first_day: date,
    last_day: date,
    *,
    keys: Sequence[RedactionKey],
    now: datetime,
) -> RestoreReport:
    """Bring the days from `first_day` to `last_day` back into the warehouse, for 30 days from now.

    Rows that are there stay as they are but for their time. Erased users stay away, and so does what the ledger does
    not call accepted, or has judged anew since. Doing it again is harmless. `keys` are the current redaction key and
    the earlier ones. Raises `NotArchived` and `RedactionKeyLost` before anything is restored, `ArchiveUnreadable` or
    `CorruptObject` when it comes to a broken object; what came before it is restored.
    """
    refuse_unrecognizable(warehouse, keys)
    days = _days_to_restore(warehouse, objects, first_day, last_day)
    erasures = read_erasures(warehouse)
    restored: dict[date, int] = {}
    erased = outdated = 0
    for day, parts in days.items():
        restored[day] = 0
        accepted = _accepted(warehouse, day)
        for key in parts:
            with downloaded(objects, key) as path:
                for frame in read_frames(path, objects.url(key)):
                    allowed = _without_erased(frame, erasures)
                    rows = _without_outdated(warehouse, allowed, accepted)
                    erased += frame.height - allowed.height
                    outdated += allowed.height - rows.height
                    restored[day] += warehouse.insert("trajectories", _kept_longer(warehouse, rows, now + HOT))
    for user, until in read_erasures(warehouse).items():
        if erasures.get(user) != until:
            delete_rows(warehouse, [user], until)
    return RestoreReport(restored, erased, outdated)


def prune_archive(objects: Objects, now: datetime) -> int:
    """Remove the days that are older than 90 days, and return how many objects that were."""
    keys = [key for day, keys in _keys_by_day(objects).items() if now.date() - day > ARCHIVED for key in keys]
    for key in keys:
        objects.delete(key)
    return len(keys)


def prune_raw(objects: Objects, now: datetime) -> int:
    """Remove the claims that are older than any message that could refer to them, and return how many they were."""
    removed = 0
    for claim in objects.list():
        if now - claim.modified > HOT:
            objects.delete(claim.key)
            removed += 1
    return removed


def archived_objects(objects: Objects) -> Iterator[tuple[date, str]]:
    """Every object of the archive with its day."""
    for stored in objects.list("day="):
        found = _KEY.fullmatch(stored.key)
        if found:
            yield date.fromisoformat(found[1]), stored.key


def rewrite_without(objects: Objects, day: date, key: str, path: Path, erased: "pl.DataFrame") -> None:
    """Replace the object, whose content is in the file `path`, by one without the rows at the erased sequences."""
    positions = ["stream", "sequence"]
    with temporary_file() as rewritten:
        frames = read_frames(path, objects.url(key))
        rows = write_frames((frame.join(erased, on=positions, how="anti") for frame in frames), rewritten)
        with rewritten.open("rb") as file:
            fingerprint = file_digest(file, "sha256").hexdigest()[:16]
        objects.upload(_key(day, rows, fingerprint), rewritten)
    objects.delete(key)


def _present_forms(warehouse: Warehouse, now: datetime) -> dict[date, str]:
    """Every day that the warehouse has and the archive may, and the name of its present form."""
    found = warehouse.query(
        """
        SELECT toDate(stream_time) AS day, count() AS trajectories,
            hex(groupBitXor(cityHash64(trajectory_id, version))) AS fingerprint
        """
        + _FROM_NOT_ERASED
        + " GROUP BY day ORDER BY day",
        {"first": now.date() - ARCHIVED, "last": now.date() + timedelta(days=1)},
    )
    return {day: _key(day, rows, fingerprint.lower()) for day, rows, fingerprint in found.iter_rows()}


def _write_day(warehouse: Warehouse, objects: Objects, day: date, key: str) -> int:
    rows = warehouse.stream("SELECT stored.* " + _FROM_NOT_ERASED, {"first": day, "last": day}, _SMALL_BLOCKS)
    with temporary_file() as path:
        count = write_frames(rows, path)
        if count:
            objects.upload(key, path)
    return count


def _key(day: date, rows: int, fingerprint: str) -> str:
    return f"day={day.isoformat()}/{rows}-{fingerprint}.parquet"


def _keys_by_day(objects: Objects) -> dict[date, list[str]]:
    keys: dict[date, list[str]] = {}
    for day, key in archived_objects(objects):
        keys.setdefault(day, []).append(key)
    return keys


def _days_to_restore(
    warehouse: Warehouse, objects: Objects, first_day: date, last_day: date
) -> Mapping[date, Sequence[str]]:
    """The objects of the days; a day on which nothing was accepted needs none."""
    archived = {day: keys for day, keys in sorted(_keys_by_day(objects).items()) if first_day <= day <= last_day}
    accepted = warehouse.query(
        """
        SELECT DISTINCT toDate(stream_time) AS day FROM trajectory_ledger FINAL
        WHERE day BETWEEN {first:Date} AND {last:Date} AND verdict = 'accepted' ORDER BY day
        """,
        {"first": first_day, "last": last_day},
    )["day"]
    missing = [day for day in accepted if day not in archived]
    if missing or not archived:
        lacking = ", ".join(map(str, missing)) if missing else f"every day from {first_day} to {last_day}"
        raise NotArchived(
            f"the archive, which keeps {ARCHIVED.days} days, lacks {lacking}: choose days that it has; "
            "recent ones are still in the warehouse"
        )
    return archived


def _without_erased(rows: "pl.DataFrame", erasures: Erasures) -> "pl.DataFrame":
    import polars as pl

    until = pl.col("user").replace_strict(erasures, default=None, return_dtype=rows.schema["stream_time"])
    return rows.filter(until.is_null() | (pl.col("stream_time") > until))


def _accepted(warehouse: Warehouse, day: date) -> "pl.DataFrame":
    """The sequences of a day that the ledger calls accepted, and under which revision."""
    return warehouse.query(
        """
        SELECT stream, sequence, revision AS judged FROM trajectory_ledger FINAL
        WHERE toDate(stream_time) = {day:Date} AND verdict = 'accepted'
        """,
        {"day": day},
    )


def _without_outdated(warehouse: Warehouse, rows: "pl.DataFrame", accepted: "pl.DataFrame") -> "pl.DataFrame":
    """The rows that are as the ledger has them, and of which the table has no newer version."""
    import polars as pl

    current = rows.join(accepted, on=["stream", "sequence"]).filter(pl.col("revision") >= pl.col("judged"))
    ids = current["trajectory_id"].to_list()
    newest = pl.concat(
        warehouse.query(
            """
            SELECT trajectory_id, max(version) AS newest FROM trajectories
            WHERE trajectory_id IN {ids:Array(String)} GROUP BY trajectory_id
            """,
            {"ids": ids[start : start + _IDS_PER_QUERY]},
        )
        for start in range(0, max(1, len(ids)), _IDS_PER_QUERY)
    )
    newer = current.join(newest, on="trajectory_id").filter(pl.col("newest") > pl.col("version"))
    return current.join(newer, on="trajectory_id", how="anti").select(rows.columns)


def _kept_longer(warehouse: Warehouse, rows: "pl.DataFrame", expires_at: datetime) -> "pl.DataFrame":
    import polars as pl

    held = list(datasets_holding(warehouse, rows["trajectory_id"].to_list()))
    return rows.with_columns(expires_at=pl.lit(expires_at), held=pl.col("trajectory_id").is_in(held))
