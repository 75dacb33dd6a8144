"""Trajectories in other people's formats: read into the contract, and written out again.

Each format is a module that says how its records are read and written; reading files, refusing records and writing
files are the same for all. It needs nothing beyond a plain `pip install rl-pipeline`.
"""

from rl_pipeline.collection.formats.catalogue import FORMATS, UnknownFormat, format_named, format_of
from rl_pipeline.collection.formats.exporting import ExportRefused, export_trajectories
from rl_pipeline.collection.formats.importing import Imported, Importer, ImportReport
from rl_pipeline.collection.formats.refusals import Refusal, RefusalFile

__all__ = [
    "FORMATS",
    "ExportRefused",
    "ImportReport",
    "Imported",
    "Importer",
    "Refusal",
    "RefusalFile",
    "UnknownFormat",
    "export_trajectories",
    "format_named",
    "format_of",
]
