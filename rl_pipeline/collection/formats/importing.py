"""From files of any known format to trajectories of the contract, one after the other.

What is wrong with a record is told and the record is kept (`Refusal`); the others are not held up by it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_pipeline.collection.formats.catalogue import FORMATS, format_of
from rl_pipeline.collection.formats.format import Format, NotOfFormat, Origin
from rl_pipeline.collection.formats.gathering import Gathered
from rl_pipeline.collection.formats.json_values import LARGEST_VALUE, RawValue
from rl_pipeline.collection.formats.mending import load_mended
from rl_pipeline.collection.formats.refusals import UNREADABLE, Refusal, is_refusal, refused_before, unreadable
from rl_pipeline.collection.formats.sources import Progress, SourceFile, raw_records, source_files
from rl_pipeline.contracts import CLAIMED_LIMITS, ContractError, Trajectory, validate_trajectory

_FAULTS = {
    "max_bytes": f"a record may have at most {LARGEST_VALUE} bytes: split it",
    "not_json": "from here on the file is no JSON: mend it, or write it again",
}
UNEXPECTED = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""What other people's files can do to code that reads them, beyond what is looked for."""


@dataclass
class ImportReport:
    """What came of an import, as far as it has come."""

    files: int = 0
    passed_over: list[str] = field(default_factory=list)
    """Files of directories in which there is nothing of a known format."""
    read: Counter[str] = field(default_factory=Counter)
    """Trajectories by format."""
    refused: Counter[str] = field(default_factory=Counter)
    """Records by reason."""
    mended: int = 0
    """Records in which halves of characters or numbers that are none were replaced."""


@dataclass(frozen=True)
class Imported:
    """A trajectory, and the record that it was read from."""

    trajectory: Trajectory
    format_name: str
    origin: Origin
    record: Any

    def refusal(self, reason: str, detail: str) -> Refusal:
        """For what is wrong with it that only shows later."""
        return Refusal(self.origin, self.format_name, reason, detail, self.record)


class Importer:
    """Reads files. `refuse` is told of every record that is refused, `report` counts what has been read."""

    def __init__(
        self,
        *,
        wanted: Format | None = None,
        model: str | None = None,
        refuse: Callable[[Refusal], object],
        progress: Progress = lambda _: None,
    ) -> None:
        self.report = ImportReport()
        self._wanted = wanted
        self._model = model
        self._refuse_record = refuse
        self._progress = progress

    def trajectories(self, paths: Iterable[Path]) -> Iterator[Imported]:
        """The trajectories of files and directories. Raises `NothingToImport`."""
        for source in source_files(paths):
            self.report.files += 1
            with Gathered() as gathered:
                try:
                    yield from self._of_file(source, gathered)
                except UNREADABLE as error:
                    self.refuse(unreadable(source.origin(), error))
                for known, spans in gathered.groups():
                    yield from self._read(FORMATS[known], spans, source.origin(model=self._model))

    def refuse(self, refusal: Refusal) -> None:
        """Count a refusal, and tell of it."""
        self.report.refused[refusal.reason] += 1
        self._refuse_record(refusal)

    def _of_file(self, source: SourceFile, gathered: Gathered) -> Iterator[Imported]:
        is_first = True
        for raw in raw_records(source, self._wanted, self._progress):
            record, origin, known = self._parsed(raw, source)
            if origin is None:
                is_first = False
                continue
            if known is None:
                if is_first and not source.is_named:
                    self.report.passed_over.append(source.name)
                    return
                self.refuse(Refusal(origin, None, "unknown_format", _what_instead(record), record))
            elif not isinstance(record, list) and (parts := list(known.groups(record))):
                for group, part in parts:
                    gathered.add(known.name, group, part)
            else:
                yield from self._read(known, record, origin)
            is_first = False
        if is_first and source.is_named:
            self.refuse(Refusal(source.origin(), None, "empty", "there is nothing in the file: name another", text=""))

    def _parsed(self, raw: RawValue, source: SourceFile) -> tuple[Any, Origin | None, Format | None]:
        """A record with its origin and format; without an origin where it was refused already."""
        origin, record, told = source.origin(raw, self._model), None, None
        if raw.fault:
            self.refuse(Refusal(origin, None, raw.fault, _FAULTS[raw.fault], text=""))
            return None, None, None
        text = raw.text
        try:
            record, is_mended = load_mended(text)
            if is_refusal(record):
                before = refused_before(record, origin)
                if before.text == "":  # of a whole file, or too large: there is nothing to try again
                    self.refuse(before)
                    return None, None, None
                origin, told, record = before.origin, before.format_name, before.record
                if before.text is not None:
                    text = before.text.encode()
                    record, is_mended = load_mended(text)
            self.report.mended += is_mended
        except (ValueError, RecursionError):
            kept = text.decode("utf-8", "backslashreplace")
            self.refuse(Refusal(origin, None, "not_json", "it is no JSON: mend it", text=kept))
            return None, None, None
        if self._wanted and not source.is_named and not self._wanted.fits(record):
            return record, origin, None
        return record, origin, self._wanted or FORMATS.get(told or "") or format_of(record)

    def _read(self, known: Format, record: Any, origin: Origin) -> Iterator[Imported]:
        """The trajectories of a record; it is refused if any of them cannot be read, but holds up none that can."""
        trees = iter(known.read(record, origin))
        while True:
            try:
                tree = next(trees, None)
                if tree is None:
                    return
                trajectory = validate_trajectory(tree, limits=CLAIMED_LIMITS)
            except ContractError as error:
                self.refuse(Refusal(origin, known.name, error.limit, str(error), record))
                continue
            except NotOfFormat as error:
                self.refuse(Refusal(origin, known.name, "not_of_format", str(error), record))
                return
            except UNEXPECTED as error:
                told = (
                    f"its structure is not that of {known.name} ({type(error).__name__}): compare it with a good record"
                )
                self.refuse(Refusal(origin, known.name, "not_of_format", told, record))
                return
            self.report.read[known.name] += 1
            yield Imported(trajectory, known.name, origin, record)


def _what_instead(record: Any) -> str:
    if isinstance(record, dict) and {"trajectory_id", "turns"} <= record.keys():
        return "it is a trajectory of the contract already: send it with `rl-pipeline publish`"
    return f"it is of no known format: say --format, one of {', '.join(sorted(FORMATS))}"
