"""Records of which any one part is missing or is something else: read or refused, and what is read can be written."""

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from rl_pipeline.collection.formats import FORMATS
from rl_pipeline.collection.formats.format import NotOfFormat, Origin
from rl_pipeline.collection.formats.importing import UNEXPECTED
from rl_pipeline.contracts import CLAIMED_LIMITS, validate_trajectory
from rl_pipeline_tests.collection.formats.records import SINGLE
from rl_pipeline_tests.collection.formats.test_round_trips import NAMES

JUNK: list[Any] = [None, True, 0, -1, 3.5, "", "x", "é" * 600, [], {}, [1], [None], [[]]]
JUNK += [{"a": 1}, {"role": "assistant"}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield (*path, name)
        yield from places(child, (*path, name))


def damaged(record: Any, randomness: Random) -> Any:
    changed = copy.deepcopy(record)
    *path, name = randomness.choice(list(places(record)))
    part = changed
    for step in path:
        part = part[step]
    if isinstance(part, dict) and randomness.random() < 0.2:
        del part[name]
    else:
        part[name] = copy.deepcopy(randomness.choice(JUNK))
    return changed


@pytest.mark.parametrize(("name", "record", "where"), SINGLE, ids=NAMES)
def test_a_damaged_record_breaks_neither_the_import_nor_the_export(name: str, record: Any, where: Origin) -> None:
    randomness = Random(name)
    read = 0
    for _ in range(200):
        try:
            trees = list(FORMATS[name].read(damaged(record, randomness), where))
        except (NotOfFormat, *UNEXPECTED):
            continue
        for tree in trees:
            validate_trajectory(tree, limits=CLAIMED_LIMITS)
            assert list(FORMATS[name].write(json.loads(json.dumps(tree))))
            read += 1
    assert read > 50
