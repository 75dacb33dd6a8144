"""How little a value reads like words or counts: what drawn secrets have in common."""

import math
import re
from collections import Counter
from itertools import pairwise, product

_RARE_NEIGHBOURS = {
    b"a": b"aehjoqz", b"b": b"bcdfghjkmnpqtvwxz", b"c": b"bdfgjmnpqvwxz", b"d": b"cfghjkmnpqtvwxyz", b"e": b"jkz",
    b"f": b"bcdghjkmnpqvwxyz", b"g": b"bcdfjkmpqtvwxyz", b"h": b"bcdfghjklmnpqsvwxyz", b"i": b"hijkquwy",
    b"j": b"bcdfghijklmnpqrstvwxyz", b"k": b"bcdfghjklmnopqrtuvwxyz", b"l": b"bfghjkmnqrvwxz",
    b"m": b"cdfghjknqrtvwxyz", b"n": b"bhjmqrwxyz", b"o": b"ehjqxyz", b"p": b"bcdfgjkmnqvwxz",
    b"q": b"abcdefghijklmnopqrstvwxyz", b"r": b"bhjqwxz", b"s": b"bdgjnqrvxz", b"t": b"bgjknqvwxz",
    b"u": b"hjkoquvwxyz", b"v": b"bcdfghjklmnpqrstuvwxyz", b"w": b"bcdfgjklmpqtuvwxyz",
    b"x": b"abdfghjklmnoqrsuvwxyz", b"y": b"abcdfghjkloqruvwxyz", b"z": b"bcdfghjklmnopqrstuvwxyz",
}  # fmt: skip
"""What follows a letter in fewer than 4 of 10,000 pairs, counted over the words of code and documentation."""
_ALPHANUMERIC = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ENOUGH = 256
_UUID = re.compile(rb"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_HEX = re.compile(rb"[0-9a-f]+|[0-9A-F]+")


def entropy(value: bytes) -> float:
    """Shannon entropy of the value's bytes, in bits per byte."""
    return -sum(count / len(value) * math.log2(count / len(value)) for count in Counter(value).values())


def surprise(value: bytes) -> float:
    """How little the value reads like words, from 0 to 1: names stay below 0.2, drawn letters and digits lie near 0.5.

    The mean over neighbouring bytes of 1 for a pair of letters that words hardly hold, and of a part of it for a change
    between letters and digits (0.6), a change from lower to upper case (0.35) and a pair of digits (0.3). Long values
    tell by their beginning.
    """
    start = value[:_ENOUGH]
    return sum(filter(None, map(_SURPRISE_OF_PAIR.get, pairwise(start)))) / max(1, len(start) - 1)


def _surprise_of_pair(first: int, second: int) -> float:
    digits = (first <= ord("9")) + (second <= ord("9"))
    if digits:
        return 0.3 if digits == 2 else 0.6
    if first >= ord("a") > second:
        return 0.35
    return float(second | 0x20 in _RARE_NEIGHBOURS[bytes([first | 0x20])])


_SURPRISE_OF_PAIR = {pair: _surprise_of_pair(*pair) for pair in product(_ALPHANUMERIC, repeat=2)}


def is_uuid(value: bytes) -> bool:
    """The value has the form of a UUID."""
    return bool(_UUID.fullmatch(value))


def is_hash(value: bytes) -> bool:
    """The value has the form of a common hash in hex digits."""
    return len(value) in {32, 40, 48, 56, 64, 96, 128} and bool(_HEX.fullmatch(value))
