"""From the name of a base model to a directory that holds it: local, in the object store, on the hub, or home-made.

What is fetched appears below the models' directory whole or not at all, and is fetched once. Weights are safetensors
only: loading another format runs whatever code is in it.
"""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp

from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.objects import Objects, StoredObject
from rl_pipeline.training.checkpoints.manifest import MANIFEST, SIGNATURE
from rl_pipeline.training.checkpoints.releasing import RELEASED_SUFFIXES, download_checkpoint, prefix_of
from rl_pipeline.training.checkpoints.signing import PublicKeys, SignatureRejected
from rl_pipeline.training.checkpoints.storage import verify
from rl_pipeline.training.plans.model_size import size_of_model
from rl_pipeline.training.plans.presets import hub_name_of
from rl_pipeline.training.small_model.building import (
    SmallWorld,
    build_small_model,
    small_world,
    world_of_small_model,
)

EMBEDDED = "embedded-small"
"""The small model of the crafting world; `embedded-small@<world>` is that of another."""
_CONFIG = "config.json"
_RECIPE = "recipe.json"
_OURS = re.compile(r"[^/]+/final")
# What an answer of the hub says that another time may be another.
_LATER = {408, 425, 429}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_LONGEST_NAME = 150
_BUILD = """
import pathlib, sys
from rl_pipeline.training.small_model.building import build_small_model
build_small_model(pathlib.Path(sys.argv[1]), world=sys.argv[2])
"""


class BaseModelUnavailable(PipelineError):
    """The model that a training shall start from cannot be had; waiting does not change that."""


class HubUnreachable(PipelineError):
    """The hub, or the way to it, is away; it may be back later."""


@dataclass(frozen=True)
class BaseModels:
    """Where base models come from."""

    directory: Path
    """Models by name, placed there by hand, made or fetched."""
    open_objects: Callable[[str], Objects]
    """Opens the object store at an address."""
    public_keys: PublicKeys
    """Whose checkpoints may be trained on."""
    hub: str | None = None
    """Another hub than Hugging Face's own."""

    def find(self, name: str, released: Objects | None = None) -> Path:
        """The directory of the model. `released` is where our own checkpoints are, none of which goes unsigned.

        Raises `BaseModelUnavailable`, `HubUnreachable`, `SignatureRejected`, and whatever the object store raises.
        """
        ours = released is not None and bool(_OURS.fullmatch(prefix_of(released, name.rstrip("/")) or ""))
        if ours or name.startswith("s3://"):
            return self._from_objects(name, ours)
        directory = self._place(name)
        kept = self.directory / _as_name(name)
        embedded, _, world = name.partition("@")
        if embedded == EMBEDDED:
            _build_embedded(kept, world or CraftingWorld.name)
        for place in (directory, kept):
            if (place / _CONFIG).is_file():
                return _checked(place)
        hub_name = hub_name_of(name) or name
        if name.startswith(("/", ".", "file://")) or not _HUB_NAME.fullmatch(hub_name):
            raise BaseModelUnavailable(
                f"There is no base model {name[:200]!r}: put it into {self.directory / _as_name(name)}, or name a"
                " directory, an s3:// address or a model of the hub."
            )
        with _appearing(kept) as unfinished:
            if unfinished:
                _fetch_from_hub(hub_name, unfinished, kept, self.hub)
        return kept

    def small_world(self, name: str) -> SmallWorld | None:
        """The world that a base model knows, and nothing but it, if it is one that is made here.

        Nothing is fetched for it: what is not on this machine is that only by its name.
        """
        for place in (self._place(name), self.directory / _as_name(name)):
            if place.exists():
                return world_of_small_model(place)
        embedded, _, world = name.partition("@")
        return small_world(world or CraftingWorld.name) if embedded == EMBEDDED else None

    def _place(self, name: str) -> Path:
        return Path(name.removeprefix("file://")) if "/" in name else self.directory / name

    def _from_objects(self, url: str, ours: bool) -> Path:
        above, _, prefix = url.rstrip("/").rpartition("/")
        if above == "s3:/":
            raise BaseModelUnavailable(f"{url} is a whole bucket: name the prefix below which the model lies.")
        objects = self.open_objects(above)
        if objects.exists(f"{prefix}/{MANIFEST}"):
            stamp = hashlib.sha256(objects.get(f"{prefix}/{MANIFEST}")).hexdigest()
            kept = self.directory / f"{_as_name(url)}-{stamp[:16]}"
            download_checkpoint(objects, prefix, kept, self.public_keys, manifest_sha256=stamp)
            return kept
        stored = {entry.key.removeprefix(f"{prefix}/"): entry for entry in objects.list(f"{prefix}/")}
        if ours or SIGNATURE in stored:
            # Whoever may write there could else pass anything off as a model that nobody ever signed.
            raise SignatureRejected(f"The checkpoint {url} has lost its manifest: do not use it; release it again.")
        wanted = {name: entry for name, entry in stored.items() if PurePosixPath(name).suffix in RELEASED_SUFFIXES}
        if _CONFIG not in wanted:
            raise BaseModelUnavailable(f"There is no model at {url}: it has no {_CONFIG}.")
        # What lies at an address may change; what was fetched from it under a stamp does not.
        kept = self.directory / f"{_as_name(url)}-{_stamp(wanted)}"
        with _appearing(kept) as unfinished:
            if unfinished:
                _fetch_from_objects(objects, wanted, unfinished)
        return kept


def is_signed(directory: Path) -> bool:
    """Whether somebody vouched for the model that was fetched into the directory."""
    return (directory / SIGNATURE).exists()


def _build_embedded(directory: Path, world: str) -> None:
    """In a process of its own: what trains stays out of this one. Of one that is there the recipe is compared, unless
    it was placed there by hand."""
    if directory.exists():
        if (directory / _RECIPE).exists():
            build_small_model(directory, world=world)
        return
    build = subprocess.run(  # noqa: S603 - the program is our own
        [sys.executable, "-c", _BUILD, str(directory), world], capture_output=True, text=True, check=False
    )
    if build.returncode != 0:
        reason = (build.stderr.strip() or "it said nothing").splitlines()[-1]
        raise BaseModelUnavailable(
            f"The embedded model cannot be built ({reason[:300]}): correct its name, or install"
            " rl-pipeline[train,environments]."
        )


def _checked(directory: Path) -> Path:
    if (directory / MANIFEST).exists():
        verify(directory)
    size_of_model(directory)
    return directory.absolute()


def _fetch_from_objects(objects: Objects, wanted: Mapping[str, StoredObject], directory: Path) -> None:
    for name, entry in wanted.items():
        objects.download(entry.key, directory / name)
        if (directory / name).stat().st_size != entry.size:
            raise BaseModelUnavailable(f"{objects.url(entry.key)} changed while it was fetched: try again.")
    size_of_model(directory)


def _fetch_from_hub(name: str, directory: Path, kept: Path, hub: str | None) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]  # the transport's

    patterns = [f"*{suffix}" for suffix in sorted(RELEASED_SUFFIXES - {".md", ".png"})]
    try:
        snapshot_download(name, local_dir=directory, allow_patterns=patterns, endpoint=hub)
    except (HTTPError, OfflineModeIsEnabled, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if _may_pass(error):
            raise HubUnreachable(
                f"The model {name} cannot be fetched from the hub now ({reason[:200]}): it is tried again, or put the"
                f" model into {kept}."
            ) from error
        raise BaseModelUnavailable(
            f"The model {name} cannot be fetched from the hub ({reason[:200]}): check the name and the network, or put"
            f" the model into {kept}."
        ) from error
    shutil.rmtree(directory / ".cache", ignore_errors=True)
    size_of_model(directory)


def _may_pass(error: Exception) -> bool:
    """Whether there was no answer, or one that says nothing about the model."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    causes = [error, error.__cause__]
    answers = [response.status_code for cause in causes if (response := getattr(cause, "response", None)) is not None]
    if answers:
        return answers[0] >= 500 or answers[0] in _LATER
    return not isinstance(error, ValueError) and not any(isinstance(cause, OfflineModeIsEnabled) for cause in causes)


@contextmanager
def _appearing(directory: Path) -> Iterator[Path | None]:
    """A directory to fill, which becomes `directory` when the block ends well; None when that is there already."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f".{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            yield None
            return
        unfinished = Path(mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            yield unfinished
            unfinished.chmod(0o755)
            unfinished.rename(directory)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def _as_name(name: str) -> str:
    """A file name; of a long address the end, which tells more."""
    return re.sub(r"[^A-Za-z0-9._-]+", "--", name)[-_LONGEST_NAME:].strip("-.")


def _stamp(entries: Mapping[str, StoredObject]) -> str:
    listing = {name: [entry.size, entry.modified.isoformat()] for name, entry in sorted(entries.items())}
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:16]
