"""What a refused message looks like: which limit, where, and what kind of value, never the value itself.

Only the errors of the contracts and the two vocabularies they speak (JSON paths, JSON type names) belong here.
"""

from collections.abc import Iterable

from rl_pipeline.errors import PipelineError

PathPart = str | int

_LONGEST_PATH = 16

_JSON_TYPES: dict[type, str] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


class ContractError(PipelineError):
    """A message that breaks its contract.

    `limit` is a stable short code (`max_depth`, `duplicate_key`, `missing`, `enum` …), `path` the place in the message,
    `value_type` the JSON type of what was found there and `advice` the rule, in words. None of them holds message
    content: keys that the contract does not name appear in `path` as `*`. Every argument is passed on to `Exception`,
    so the error survives pickling.
    """

    def __init__(self, limit: str, path: str, value_type: str, advice: str, more: int = 0) -> None:
        super().__init__(limit, path, value_type, advice, more)
        self.limit = limit
        self.path = path
        self.value_type = value_type
        self.advice = advice
        self.more = more

    def __str__(self) -> str:
        others = f" ({self.more} more errors in this message)" if self.more else ""
        return f"{self.path} breaks {self.limit}: found {self.value_type}; {self.advice}{others}"


class UnknownSubject(ContractError):
    """A subject that has no contract; the text names those that have one."""

    def __init__(self, subject: str, known: tuple[str, ...]) -> None:
        super().__init__("unknown_subject", "$", "string", f"publish on one of {', '.join(known)}")
        self.args = (subject, known)
        self.subject = subject
        self.known = known

    def __str__(self) -> str:
        return f"no contract for subject {self.subject[:128]!r}; {self.advice}"


def json_type(value: object) -> str:
    """The JSON name of a value's type; Python's own name for what JSON cannot hold."""
    return _JSON_TYPES.get(type(value), type(value).__name__)


def json_path(parts: Iterable[PathPart], names: frozenset[str]) -> str:
    """`turns[3].action.type`, with `*` for every key outside `names`: a key can be as secret as a value."""
    path = ""
    for depth, part in enumerate(parts):
        if depth == _LONGEST_PATH:
            return f"{path}..."
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            name = part if part in names else "*"
            path += f".{name}" if path else name
    return path or "$"
