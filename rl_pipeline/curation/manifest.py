"""The manifest is the dataset: what was asked, what was chosen and why, and the sums of its files.

Its hash is of the content alone: the same inputs give the same hash, whatever the job is called and whenever it ran.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import orjson

from rl_pipeline.curation.files import WrittenFile
from rl_pipeline.curation.policy import Criteria, CurationPolicy
from rl_pipeline.errors import PipelineError

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1


class ManifestUnreadable(PipelineError):
    """What should be a manifest is none."""


@dataclass(frozen=True)
class Manifest:
    """A manifest as it is stored."""

    dataset_id: str
    job_id: str
    revision: int
    created_at: str
    content: Mapping[str, Any]
    """asked, policy, rewards, trajectories, files: what the hash is of."""
    summary: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """Of the content, in hexadecimal digits."""
        return sha256(_canonical(self.content)).hexdigest()

    @property
    def files(self) -> list[WrittenFile]:
        """The files of the dataset."""
        return [WrittenFile(**each) for each in self.content["files"]]

    def encoded(self) -> bytes:
        """As it is stored."""
        return _canonical(vars(self) | {"manifest_hash": self.hash})


def content_of(
    criteria: Criteria, policy: CurationPolicy, trajectories: Sequence[Mapping[str, Any]], files: Sequence[WrittenFile]
) -> dict[str, Any]:
    """What a manifest says of a dataset. `trajectories` are in order, one entry for each use of each."""
    return {
        "format": FORMAT,
        "asked": criteria.hashed(),
        "policy": policy.hashed(),
        "trajectories": list(trajectories),
        "files": [file.listed() for file in files],
    }


def read_manifest(data: bytes, address: str) -> Manifest:
    """The manifest in `data`. Raises `ManifestUnreadable`, which names its address, if it is none or was changed."""
    try:
        found = orjson.loads(data)
        stated = found.pop("manifest_hash")
        manifest = Manifest(**found)
        is_whole = manifest.hash == stated and all(_is_name(file.name) for file in manifest.files)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise ManifestUnreadable(f"{address} is no whole manifest of a dataset: curate the job again")
    return manifest


def _is_name(name: str) -> bool:
    """A file lies beside its manifest, nowhere else."""
    return re.fullmatch(r"[a-z]+\.parquet", name) is not None


def _canonical(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
