"""From which checkpoint each one was trained further: what one has learnt, all that come after it have learnt too.

`model_checkpoints` has one row for each training, which stays when its files go. So it is read whole and walked here: a
recursive query would be a matter of the warehouse's version.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rl_pipeline.stores.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A checkpoint, as far as descent goes."""

    id: str
    job_id: str
    dataset_id: str
    base_model: str
    checkpoint_path: str


@dataclass(frozen=True, slots=True)
class Ancestry:
    """All checkpoints that there ever were, the oldest first."""

    checkpoints: Sequence[Ancestor]

    def line(self, job_id: str) -> list[Ancestor]:
        """The checkpoint of a training job and its ancestors, each before the one that it was trained from."""
        places = {_place(one.checkpoint_path): one for one in self.checkpoints if one.checkpoint_path}
        following = next((one for one in reversed(self.checkpoints) if one.job_id == job_id), None)
        found: dict[str, Ancestor] = {}
        while following is not None and following.id not in found:
            found[following.id] = following
            following = places.get(_place(following.base_model))
        return list(found.values())

    def with_descendants(self, checkpoint_ids: Collection[str]) -> set[str]:
        """These checkpoints and all that were trained from them, directly or not."""
        children = defaultdict[str, list[Ancestor]](list)
        for one in self.checkpoints:
            children[_place(one.base_model)].append(one)
        found, left = set(checkpoint_ids), [one for one in self.checkpoints if one.id in checkpoint_ids]
        while left:
            parent = left.pop()
            born = [one for one in children[_place(parent.checkpoint_path)] if one.id not in found]
            found |= {one.id for one in born}
            left += born
        return found


def read_ancestry(warehouse: Warehouse) -> Ancestry:
    """As the table tells it."""
    found = warehouse.query(
        """
        SELECT id, job_id, dataset_id, base_model, checkpoint_path FROM model_checkpoints FINAL
        ORDER BY created_at, id
        """
    )
    return Ancestry([Ancestor(**row) for row in found.iter_rows(named=True)])


def _place(address: str) -> str:
    """An address as it compares: people write the same one in more than one way."""
    return address.removeprefix("file://").rstrip("/")
