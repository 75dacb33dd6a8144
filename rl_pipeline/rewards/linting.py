"""What ruff and bandit say about code: a score from 0 to 10 and a number of critical security findings.

**Score**, as pylint counts: `10 - 10·(5·errors + others)/statements`, at least 0, over all readable snippets of a
trajectory together. Errors are ruff's rules for code that cannot work (`E9`, `F5`, `F7`, `F811`, `F821`…`F823`, `PLE`);
others are likely mistakes (the rest of `F`, `B`, `E7`, `PLW`, `W605`). In a fragment, names and imports may belong to
other fragments: undefined names, unused imports and `return`, `yield` and `await` outside a function are no findings.
Taste (layout, naming, length) is never judged, and suppressions in the code (`noqa`, `nosec`) are not honoured: the
one who is judged wrote them.

**Critical** are the rules of `CRITICAL_RULES`; with bandit its findings of high severity instead.

Snippets are checked many at a time, each in a file of its own, so a verdict does not depend on the company. A linter
that crashes on a batch is asked again for its halves, so a hostile snippet costs others nothing; its own verdict says
nothing, is not cached, and is counted in `failures`.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rl_pipeline.rewards.code import Snippet, is_nested_too_deep, parse, statements_of
from rl_pipeline.rewards.linters import SYNTAX_ERROR, UNREAD, Bandit, Linter, LinterFailed, Ruff

Scanner = Literal["ruff", "bandit"]

CRITICAL_RULES = {
    "S102": "exec",
    "S201": "Flask with its debugger on",
    "S202": "tar archives extracted unchecked",
    "S301": "pickle",
    "S302": "marshal",
    "S304": "broken cipher",
    "S305": "broken mode of a cipher",
    "S307": "eval",
    "S323": "TLS certificates not verified",
    "S501": "TLS certificates not verified in requests",
    "S502": "broken version of TLS",
    "S503": "broken version of TLS as a default",
    "S505": "cryptographic key too short",
    "S506": "yaml.load of anything",
    "S507": "SSH host keys not verified",
    "S602": "subprocess with shell=True",
    "S604": "call with shell=True",
    "S605": "process started through a shell",
    "S608": "SQL put together from strings",
    "S609": "wildcard in a shell command",
    "S701": "Jinja templates without escaping",
}
"""The security rules of ruff (`S`) that count as critical: what lets a stranger run code, read data or listen in."""

LINT_RULES = ("B", "E7", "E9", "F", "PLE", "PLW", "W605")
ERRORS = ("E9", "F5", "F7", "F811", "F82", "PLE")

_CALL_SNIPPETS = 500
_CALL_CHARACTERS = 2_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about one snippet; None where a linter failed or was not asked."""

    parses: bool
    statements: int = 0
    errors: int | None = None
    others: int | None = None
    critical: int | None = None
    is_settled: bool = True
    """False where a linter failed: it may say more another time."""


UNREADABLE = Verdict(parses=True)
"""For a snippet too large to look into: nothing is held against it, nothing is known."""


def gate(snippet: Snippet) -> Verdict:
    """Whether the snippet parses, and how many statements it has; no linter is asked."""
    if not snippet.is_readable:
        return UNREADABLE
    tree = parse(snippet.text)
    return Verdict(parses=False) if tree is None else Verdict(parses=True, statements=statements_of(tree))


def lint_score(verdicts: Sequence[Verdict]) -> float | None:
    """The score of a trajectory's snippets together; None where none of them was linted or had a statement.

    Only snippets with findings count, and 10 where none has any: clean filler must not make up for bad code.
    """
    linted = [verdict for verdict in verdicts if verdict.errors is not None]
    if not any(verdict.statements for verdict in linted):
        return None
    found = [verdict for verdict in linted if verdict.errors or verdict.others]
    burden = sum(5 * (verdict.errors or 0) + (verdict.others or 0) for verdict in found)
    return max(0.0, 10.0 - 10.0 * burden / max(1, sum(verdict.statements for verdict in found)))


def critical_findings(verdicts: Sequence[Verdict]) -> int | None:
    """The critical findings of a trajectory's snippets together; None where none with a statement was scanned."""
    known = [verdict.critical for verdict in verdicts if verdict.statements and verdict.critical is not None]
    return sum(known) if known else None


class CodeChecker:
    """Judges snippets, and remembers the verdicts by content, tools and rules. For one thread at a time."""

    def __init__(self, scanner: Scanner = "ruff", *, remembered: int = 50_000, timeout_seconds: float = 120.0) -> None:
        """`scanner` finds the security problems; ruff lints in any case. Raises `LinterMissing`."""
        self.failures = 0
        """Calls of a linter that failed."""
        self._linter: Linter = Ruff((*LINT_RULES, *CRITICAL_RULES) if scanner == "ruff" else LINT_RULES)
        self._scanner: Linter | None = Bandit() if scanner == "bandit" else None
        self._remembered = remembered
        self._timeout_seconds = timeout_seconds
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        tools = [tool.fingerprint for tool in (self._linter, self._scanner) if tool]
        self.fingerprint = hashlib.sha256("\n".join(tools).encode()).hexdigest()
        """Equal for checkers that judge alike: the tools' versions and the rules."""

    def check(self, snippets: Sequence[Snippet]) -> list[Verdict]:
        """The verdicts in order. The linters are asked only for what is new, for all of it together."""
        keys = [self._key(snippet) for snippet in snippets]
        known = {key: verdict for key in keys if (verdict := self._verdicts.get(key))}
        new = {key: snippet for key, snippet in zip(keys, snippets, strict=True) if key not in known}
        known.update(zip(new, self._judge(list(new.values())), strict=True))
        for key in keys:
            if known[key].is_settled:
                self._remember(key, known[key])
        return [known[key] for key in keys]

    def _key(self, snippet: Snippet) -> bytes:
        kind = "file" if snippet.is_file else "fragment"
        text = snippet.text.encode("utf-8", "surrogatepass")
        return hashlib.sha256(f"{self.fingerprint} {kind} ".encode() + text).digest()

    def _remember(self, key: bytes, verdict: Verdict) -> None:
        self._verdicts[key] = verdict
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > self._remembered:
            self._verdicts.popitem(last=False)

    def _judge(self, snippets: Sequence[Snippet]) -> list[Verdict]:
        verdicts = [gate(snippet) for snippet in snippets]
        pairs = enumerate(zip(snippets, verdicts, strict=True))
        worth_asking = [
            place
            for place, (snippet, verdict) in pairs
            if snippet.is_readable and (verdict.parses or not is_nested_too_deep(snippet.text))
        ]
        for places in _batches(worth_asking, snippets):
            self._complete(places, snippets, verdicts)
        return verdicts

    def _complete(self, places: Sequence[int], snippets: Sequence[Snippet], verdicts: list[Verdict]) -> None:
        """Add what the linters say; where one fails on a snippet, its verdict stays as it was, and unsettled."""
        for place, rules in zip(places, self._ask(self._linter, [snippets[place] for place in places]), strict=True):
            if rules is None:
                verdicts[place] = replace(verdicts[place], is_settled=False)
            else:
                verdicts[place] = _linted(verdicts[place], snippets[place], rules, is_scanned=self._scanner is None)
        if self._scanner is None:
            return
        places = [place for place in places if verdicts[place].errors is not None]
        for place, grades in zip(places, self._ask(self._scanner, [snippets[place] for place in places]), strict=True):
            if grades is None:
                verdicts[place] = replace(verdicts[place], is_settled=False)
            elif not grades[UNREAD]:
                verdicts[place] = replace(verdicts[place], critical=grades["HIGH"])

    def _ask(self, linter: Linter, batch: Sequence[Snippet]) -> list[Counter[str] | None]:
        """How often each rule was broken in each snippet; None for a snippet on which the linter fails."""
        if not batch:
            return []
        try:
            return [*linter.findings(batch, self._timeout_seconds)]
        except LinterFailed:
            self.failures += 1
        if len(batch) == 1:
            return [None]
        half = len(batch) // 2
        return [*self._ask(linter, batch[:half]), *self._ask(linter, batch[half:])]


def _linted(verdict: Verdict, snippet: Snippet, rules: Counter[str], *, is_scanned: bool) -> Verdict:
    """The gate's verdict with what ruff found, which has the last word on syntax: it reads newer Python than ours."""
    if rules[SYNTAX_ERROR]:
        return replace(verdict, parses=False)
    lint = {rule: count for rule, count in rules.items() if rule not in CRITICAL_RULES}
    errors = sum(count for rule, count in lint.items() if rule.startswith(ERRORS))
    return replace(
        verdict,
        parses=True,
        statements=verdict.statements or _lines_of_code(snippet.text),
        errors=errors,
        others=sum(lint.values()) - errors,
        critical=rules.total() - sum(lint.values()) if is_scanned else None,
    )


def _lines_of_code(text: str) -> int:
    """Stands in for the statements of code that only newer Python can read."""
    return sum(not line.lstrip().startswith("#") for line in text.splitlines() if line.strip())


def _batches(places: Sequence[int], snippets: Sequence[Snippet]) -> Iterator[list[int]]:
    """The places in groups that one call of a linter takes: bounded by number and by size."""
    batch, characters = list[int](), 0
    for place in places:
        size = len(snippets[place].text)
        if batch and (len(batch) == _CALL_SNIPPETS or characters + size > _CALL_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(place)
        characters += size
    if batch:
        yield batch
