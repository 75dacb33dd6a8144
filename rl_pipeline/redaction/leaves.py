"""The leaves of a JSON tree: collected once, in order, and put back into a copy that shares what did not change.

Containers are walked level by level, so the leaves of one container follow each other, and a leaf needs no record of
its own place: it is counted again in the few containers that change.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.arguments import secret_arguments
from rl_pipeline.redaction.field_names import (
    PAIR_NAMES,
    PAIR_VALUES,
    SCHEMA_VALUES,
    FieldName,
    is_schema,
    sensitive_name,
)
from rl_pipeline.redaction.field_values import is_sensitive_value
from rl_pipeline.redaction.placeholders import PLACEHOLDER

_LEAST_NUMBER = 10**8
"""Smaller numbers say nothing without the name of their field."""
_MOST_NUMBER = 10**600
_NUMBERS = frozenset({int, float})
_TEXT = frozenset({str})
_OBJECTS = frozenset({dict})
_LEAST_OF_KIND = {
    "API_KEY": _LEAST_NUMBER, "PRIVATE_KEY": _LEAST_NUMBER, "JWT": _LEAST_NUMBER,
    "PASSWORD": 1000, "IDENTIFIER": 1000, "CREDIT_CARD": 1000, "SSN": 1000, "IBAN": 1000,
}  # fmt: skip
"""Smaller numbers under such names only count something; a card has a code of three digits, so others may be short."""
_UNCERTAIN_PASSWORD = FieldName("PASSWORD", certain=False)
_WORKING_DIRECTORY = frozenset({"pwd"})
_LOGINS = frozenset({"user", "username", "user_name", "userName", "login", "email", "User", "Username", "USER"})
"""Beside one of them, `pass` is no result."""
_MOST_CACHED_NAMES = 20_000
_LONGEST_CACHED_NAME = 64


class NotJson(PipelineError):
    """The tree holds something that JSON does not have."""


class SensitiveField(NamedTuple):
    """A whole value that is replaced for the name it stands under."""

    container: int
    key: str | int
    kind: str
    text: str


class SensitivePart(NamedTuple):
    """The end of a text that is replaced for the place it stands at: the password in `curl -u`."""

    number: int
    start: int
    kind: str


class NameCache:
    """The field names that no rule found anything in; never more than a bound, never one that was not scanned."""

    def __init__(self) -> None:
        self.ordinary: set[str] = set()
        """Names that say nothing about their value: an object that has only such names needs no second look."""
        self.telling: set[str] = set()

    def add(self, names: Iterable[str]) -> None:
        """Remember names that were scanned."""
        if len(self.ordinary) + len(self.telling) > _MOST_CACHED_NAMES:
            self.ordinary.clear()
            self.telling.clear()
        for name in names:
            if len(name) <= _LONGEST_CACHED_NAME:
                tells = name in PAIR_VALUES or sensitive_name(name) is not None
                (self.telling if tells else self.ordinary).add(name)


class Leaves:
    """What there is to scan in one tree."""

    def __init__(self, tree: Any, names: NameCache) -> None:
        self.texts: list[str] = []
        """Strings, and numbers with enough digits to mean something, as texts."""
        self.fields: list[SensitiveField] = []
        self.parts: list[SensitivePart] = []
        self.new_names: set[str] = set()
        """Names that were not scanned before."""
        self._root = tree
        self._containers: list[Any] = [[tree]]
        self._firsts: list[int] = []
        self._first_children: list[int] = []
        self._child_keys: dict[int, list[str | int]] = {}
        self._inherited: dict[int, FieldName] = {}
        self._taken: dict[int, set[str | int]] = {}
        self._unwritable: set[int] = set()
        self._walk(names)

    def all_names(self) -> set[str]:
        """The names of all fields."""
        return set[str]().union(*(container for container in self._containers if type(container) is dict))

    def rewritten(self, texts: Mapping[int, str], fields: Mapping[tuple[int, str | int], str]) -> Any:
        """The tree with some leaves exchanged; the tree that was given keeps its own."""
        copies: dict[int, Any] = {0: [self._root]}
        by_container: dict[int, dict[int, str]] = {}
        for number, text in texts.items():
            by_container.setdefault(bisect_right(self._firsts, number) - 1, {})[number] = text
        for field in self.fields if by_container else ():
            self._taken.setdefault(field.container, set()).add(field.key)
        for container, exchanged in by_container.items():
            copy = self._copy(container, copies)
            for number, key in enumerate(self._keys_of_leaves(container), start=self._firsts[container]):
                if number in exchanged:
                    copy[key] = exchanged[number]
        for (container, key), text in fields.items():
            self._copy(container, copies)[key] = text
        return copies[0][0]

    def _walk(self, names: NameCache) -> None:
        texts, containers, ordinary, inherited = self.texts, self._containers, names.ordinary, self._inherited
        # Bound once: this loop sees every value of every message.
        add_text, add_container = texts.append, containers.append
        add_first, add_first_child = self._firsts.append, self._first_children.append
        for index, container in enumerate(containers):  # grows while it is walked
            add_first(len(texts))
            add_first_child(len(containers))
            values: Iterable[Any]
            if index in inherited or (type(container) is dict and not ordinary.issuperset(container)):
                values = self._without_fields(index, container, names)
            elif type(container) is dict:
                values = container.values()
            else:
                values = self._values(index, container)
            for value in values:
                kind = type(value)
                if kind is str:
                    add_text(value)
                elif kind is dict or kind is list:
                    add_container(value)
                elif kind is int or kind is float:
                    if not -_LEAST_NUMBER < value < _LEAST_NUMBER and _is_long_number(value):
                        self._add_number(index, int(value))
                elif value is not None and kind is not bool:
                    raise NotJson(f"a value of type {kind.__name__} is no JSON: decode the message first")

    def _values(self, index: int, container: list[Any]) -> list[Any]:
        """The values of a list that must be looked at one by one: most lists hold values of one kind."""
        kinds = set(map(type, container))
        if kinds == _TEXT:
            self.texts += self._without_arguments(index, container)
        elif kinds == _OBJECTS:
            self._containers += container
        elif not _says_nothing(container, kinds):
            return container
        return []

    def _without_fields(self, index: int, container: dict[str, Any] | list[Any], names: NameCache) -> Iterator[Any]:
        """The values that are scanned as any other; the sensitive ones are noted."""
        above = self._inherited.get(index)
        if isinstance(container, list):
            if above is not None:
                yield from (value for key, value in enumerate(container) if not self._take(index, key, value, above))
            return
        described = above is not None and (not above.certain or is_schema(container))
        for key, value in container.items():
            if type(key) is not str:
                raise NotJson("the name of a field is no text: decode the message first")
            if key not in names.ordinary and key not in names.telling:
                self.new_names.add(key)
            name = None if key in names.ordinary else _name_in(container, key)
            if name is None and (key in SCHEMA_VALUES or not described):
                name = above
            if name is None or not self._take(index, key, value, name):
                yield value

    def _add_number(self, index: int, number: int) -> None:
        if -_MOST_NUMBER < number < _MOST_NUMBER:
            self.texts.append(str(number))
            return
        if index in self._unwritable:
            return
        self._unwritable.add(index)
        # Python refuses to write such numbers, so nobody can look into them.
        for key, value in _items(self._containers[index]):
            if type(value) is int and not -_MOST_NUMBER < value < _MOST_NUMBER:
                self.fields.append(SensitiveField(index, key, "SECRET", hex(value)))

    def _without_arguments(self, index: int, texts: list[str]) -> list[str]:
        """The texts without those that are secrets for their place, as after `--password`; parts of some are noted."""
        arguments = secret_arguments(texts)
        if not arguments:  # nearly always
            return texts
        taken: set[int] = set()
        for at, start, name in arguments:
            if start == 0:
                if self._take(index, at, texts[at], name):
                    taken.add(at)
            elif is_sensitive_value(name, texts[at][start:]) and not PLACEHOLDER.search(texts[at]):
                self.parts.append(SensitivePart(len(self.texts) + at - len(taken), start, name.kind))
        return [text for at, text in enumerate(texts) if at not in taken] if taken else texts

    def _take(self, index: int, key: str | int, value: Any, name: FieldName) -> bool:
        """Note the value if it is sensitive for its name; a container passes the name on.

        A field that holds its own name, as forms and schemas have it, holds nothing.
        """
        kind = type(value)
        if value == key or (kind is str and type(key) is str and value.lower() == key.lower()):
            return False
        if kind is str or (kind in _NUMBERS and name.certain and not _is_count(key, value, name)):
            text = str(value)
            if is_sensitive_value(name, text):
                self.fields.append(SensitiveField(index, key, name.kind, text))
                return True
        elif kind is dict or (kind is list and name.certain):
            self._inherited[len(self._containers)] = name
        return False

    def _keys_of_leaves(self, index: int) -> Iterator[str | int]:
        """The keys of the container's texts, in the order of the walk."""
        container = self._containers[index]
        taken = self._taken.get(index, ())
        for key, value in _items(container):
            if key in taken:
                continue
            if type(value) is str or _is_long_number(value):
                yield key

    def _place(self, index: int) -> tuple[int, str | int]:
        """The container that holds this one, and where: found anew for the few that change."""
        parent = bisect_right(self._first_children, index) - 1
        if parent not in self._child_keys:
            self._child_keys[parent] = [
                key for key, value in _items(self._containers[parent]) if type(value) is dict or type(value) is list
            ]
        return parent, self._child_keys[parent][index - self._first_children[parent]]

    def _copy(self, index: int, copies: dict[int, Any]) -> Any:
        """The container's copy, hung into the copies of all that hold it; `copies` has that of the first."""
        line = []
        above = index
        while above not in copies:
            parent, key = self._place(above)
            line.append((above, parent, key))
            above = parent
        for number, parent, key in reversed(line):
            copies[number] = copies[parent][key] = self._containers[number].copy()
        return copies[index]


def _items(container: dict[str, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    return container.items() if isinstance(container, dict) else enumerate(container)


def _says_nothing(numbers: list[Any], kinds: set[type]) -> bool:
    """Whether the list holds only numbers without meaning of their own: token ids and probabilities by the thousand."""
    if not kinds <= _NUMBERS:
        return False
    return not numbers or (min(numbers) > -_LEAST_NUMBER and max(numbers) < _LEAST_NUMBER)


def _is_count(key: str | int, value: float, name: FieldName) -> bool:
    """Whether a number tells how many there are, or which one: keys are no small numbers, nothing is a fraction."""
    if abs(value) >= _MOST_NUMBER or (type(value) is float and not value.is_integer()):
        return True
    plural = type(key) is str and key[-1:] in {"s", "S"}
    return abs(value) < (_LEAST_NUMBER if plural else _LEAST_OF_KIND.get(name.kind, 0))


def _is_long_number(value: Any) -> bool:
    """Whether the number has digits enough to be somebody's: a float has them where it is a whole number."""
    if type(value) is int:
        return abs(value) >= _LEAST_NUMBER
    return type(value) is float and value.is_integer() and abs(value) >= _LEAST_NUMBER


def _name_in(container: Mapping[str, Any], key: str) -> FieldName | None:
    if key in PAIR_VALUES:
        names = (container.get(name) for name in PAIR_NAMES)
        return next((found for name in names if isinstance(name, str) and (found := sensitive_name(name))), None)
    name = sensitive_name(key)
    if name == _UNCERTAIN_PASSWORD and key.lower() not in _WORKING_DIRECTORY and not _LOGINS.isdisjoint(container):
        return FieldName(name.kind, certain=True)
    return name
