"""Hostile messages among good ones: no crash, each dead-lettered once, every good neighbour stored."""

import json
from collections.abc import Callable
from itertools import cycle, islice
from random import Random

from rl_pipeline_tests.ingestion.ingesting import Ingesting, document, documents

HOSTILE = 200


def raw(**changes: object) -> bytes:
    return json.dumps(document() | changes).encode()


def with_instructions(text: str) -> bytes:
    """A whole trajectory, with this JSON text as its instructions."""
    return json.dumps(document(instructions="HERE")).replace('"HERE"', text).encode()


KINDS: dict[str, Callable[[Random], bytes]] = {
    "depth bomb": lambda chance: b"[" * chance.randrange(65, 900_000),
    "depth bomb of objects": lambda chance: b'{"a":' * chance.randrange(65, 150_000),
    "depth within a trajectory": lambda _: with_instructions("[" * 100 + "]" * 100),
    "NaN": lambda chance: with_instructions(chance.choice(["NaN", "Infinity", "-Infinity"])),
    "1e999": lambda _: with_instructions("1e999"),
    "long integer": lambda chance: with_instructions("9" * chance.randrange(400, 100_000)),
    "repeated key": lambda _: b'{"turns": 1, ' + raw()[1:],
    "lone surrogate": lambda chance: with_instructions(f'"\\ud{chance.choice("89abcdef")}00"'),
    "surrogate in the bytes": lambda _: with_instructions('"HERE2"').replace(b"HERE2", b"\xed\xa0\x80"),
    "1 MiB string": lambda _: b'"' + b"x" * (2**20 - 1000) + b'"',
    "1 MiB string in a field that is none": lambda _: raw(more="x" * (2**20 - 20_000)),
    "thousands of keys": lambda _: json.dumps({f"key {number}": 0 for number in range(5_000)}).encode(),
    "path-like id": lambda chance: raw(trajectory_id=chance.choice(["../../etc/passwd", "/etc/passwd", "..", "a/b"])),
    "wrong types": lambda chance: raw(
        **{chance.choice(["turns", "metadata", "task_context"]): chance.choice([7, "", []])}
    ),
    "wrong type inside": lambda _: with_instructions("[1]"),
    "truncated": lambda chance: raw()[: chance.randrange(1, 800)],
    "truncated within an escape": lambda _: b'{"a": "\\u00',
    "not text": lambda chance: chance.randbytes(chance.randrange(1, 5_000)),
    "nothing": lambda _: b"",
    "zero bytes": lambda _: bytes(1000),
    "byte order mark": lambda _: b"\xef\xbb\xbf" + raw(),
    "not an object": lambda chance: chance.choice([b"null", b"true", b"0", b'"text"', b"[]"]),
    "an envelope of another topic": lambda _: json.dumps(
        {"id": "1", "topic": "other", "ts": "", "version": "v1", "source": "s", "payload": document()}
    ).encode(),
    "a claim that climbs": lambda _: raw(claim_check={"key": "../secret", "sha256": "0" * 64, "size_bytes": 1}),
    "zero time": lambda _: raw(start_timestamp="0001-01-01T00:00:00Z"),
    "end before the start": lambda _: raw(end_timestamp="1999-01-01T00:00:00Z"),
}


def test_hostile_messages_are_dead_lettered_once_and_their_neighbours_stored(ingesting: Ingesting) -> None:
    chance = Random(20260102)
    good = documents(HOSTILE)
    hostile = [make(chance) for make in islice(cycle(KINDS.values()), HOSTILE)]
    for neighbour, poison in zip(good, hostile, strict=True):
        ingesting.publish(neighbour, poison)
    for _ in range(2):
        ingesting.drain(workers=2)
        assert ingesting.verdicts() == dict(
            zip(range(1, 2 * HOSTILE + 1), cycle(["accepted", "refused"]), strict=False)
        )
        assert sorted(letter["sequence"] for letter in ingesting.letters()) == list(range(2, 2 * HOSTILE + 1, 2))
        assert [row["trajectory_id"] for row in ingesting.stored()] == [made["trajectory_id"] for made in good]
