"""The formats that are known, and which of them a record is of."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rl_pipeline.collection.formats.atif import Atif
from rl_pipeline.collection.formats.fireact import FireAct
from rl_pipeline.collection.formats.format import Format
from rl_pipeline.collection.formats.intercode import InterCode
from rl_pipeline.collection.formats.lightning_spans import LightningSpans
from rl_pipeline.collection.formats.massgen_traces import MassGenTraces
from rl_pipeline.collection.formats.openai_messages import OpenAIMessages
from rl_pipeline.collection.formats.otlp import OtlpTraces
from rl_pipeline.collection.formats.swe_agent import SWEAgent
from rl_pipeline.collection.formats.tau_bench import TauBench
from rl_pipeline.errors import PipelineError


class UnknownFormat(PipelineError):
    """There is no format of this name; the text names those that there are."""


# In the order in which a record is tried: those that have fields which no other has come first.
_ALL: tuple[Format, ...] = (
    LightningSpans(),
    OtlpTraces(),
    MassGenTraces(),
    InterCode(),
    TauBench(),
    FireAct(),
    Atif(),
    SWEAgent(),
    OpenAIMessages(),
)
FORMATS: Mapping[str, Format] = MappingProxyType({known.name: known for known in _ALL})


def format_named(name: str) -> Format:
    """The format. Raises `UnknownFormat`."""
    if name not in FORMATS:
        raise UnknownFormat(f"there is no format {name[:64]!r}: name one of {', '.join(sorted(FORMATS))}")
    return FORMATS[name]


def format_of(record: Any, *, members: bool = False) -> Format | None:
    """The format that a record looks like; with `members`, of those whose files can be objects of records."""
    return next((known for known in _ALL if (known.members or not members) and known.fits(record)), None)
