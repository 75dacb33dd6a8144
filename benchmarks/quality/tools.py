"""The tools that are compared, each as it is meant to be used, behind one door.

Competitors are the extra `[bench]`; one that is not installed is left out.
"""

import logging
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rl_pipeline.redaction.passage import Passage
from rl_pipeline.redaction.rule import packaged_rules
from rl_pipeline.redaction.scanner import open_scanner

from .sets import PERSONAL, SECRET, Span


class Tool(Protocol):
    """Finds sensitive stretches in a text."""

    name: str
    entities: frozenset[str]
    """What it looks for."""

    def findings(self, text: str) -> Sequence[Span]:
        """What it finds; stretches may overlap."""
        ...


class Ours:
    """Every rule that is on by default, as the product scans."""

    name = "ours"
    entities = frozenset({SECRET, "STREET_ADDRESS", *PERSONAL})
    _ENTITIES: Mapping[str, str] = {
        "EMAIL": "EMAIL_ADDRESS",
        "PHONE": "PHONE_NUMBER",
        "CREDIT_CARD": "CREDIT_CARD",
        "SSN": "US_SSN",
        "IBAN": "IBAN_CODE",
        "IP_ADDRESS": "IP_ADDRESS",
        "ADDRESS": "STREET_ADDRESS",
        **dict.fromkeys(("API_KEY", "PASSWORD", "PRIVATE_KEY", "JWT", "SECRET"), SECRET),
    }

    def __init__(self) -> None:
        self._scanner = open_scanner([rule for rule in packaged_rules() if rule.on], {})

    def findings(self, text: str) -> list[Span]:
        passage = Passage([text])
        found = []
        for first, last, source in self._scanner.findings(passage):
            start, end = (len(passage.buffer[:at].decode()) for at in passage.whole(first, last))
            found.append(Span(start, end, self._ENTITIES.get(source.kind, source.kind)))
        return found


class Presidio:
    """Its predefined pattern recognizers, at any score: without a language model there is no context to raise one."""

    name = "presidio"
    entities = frozenset(PERSONAL)

    def __init__(self) -> None:
        from presidio_analyzer import predefined_recognizers as predefined

        # It asks the network for a newer list of domains, and takes the one it ships with when there is none.
        logging.getLogger("tldextract").setLevel(logging.CRITICAL)
        self._recognizers = [
            predefined.EmailRecognizer(),
            predefined.PhoneRecognizer(),
            predefined.CreditCardRecognizer(),
            predefined.UsSsnRecognizer(),
            predefined.IbanRecognizer(),
            predefined.IpRecognizer(),
        ]

    def findings(self, text: str) -> list[Span]:
        results = (each.analyze(text, each.supported_entities, None) for each in self._recognizers)
        return [Span(found.start, found.end, found.entity_type) for result in results for found in result or ()]


class DetectSecrets:
    """All plugins and the default filters, on a file."""

    name = "detect_secrets"
    entities = frozenset({SECRET})

    def __init__(self) -> None:
        from detect_secrets import SecretsCollection
        from detect_secrets.settings import default_settings

        self._collection, self._settings = SecretsCollection, default_settings

    def findings(self, text: str) -> list[Span]:
        collection = self._collection()
        with tempfile.TemporaryDirectory() as directory, self._settings():
            file = Path(directory, "text.txt")
            file.write_text(text, encoding="utf-8")
            collection.scan_file(str(file))
        return _where(text, (secret.secret_value for _, secret in collection))


class CredSweeper:
    """Default rules, filters and machine learning model, which lies in the package."""

    name = "credsweeper"
    entities = frozenset({SECRET})

    def __init__(self) -> None:
        from credsweeper.app import CredSweeper as Sweeper
        from credsweeper.file_handler.string_content_provider import StringContentProvider

        self._sweeper, self._provider = Sweeper(), StringContentProvider

    def findings(self, text: str) -> list[Span]:
        candidates = self._sweeper.file_scan(self._provider(text.splitlines()))
        self._sweeper.credential_manager.set_credentials(candidates)
        self._sweeper.post_processing(None)
        credentials = self._sweeper.credential_manager.get_credentials()
        return _where(text, (line.value for credential in credentials for line in credential.line_data_list))


COMPETITORS: dict[str, type[Presidio] | type[DetectSecrets] | type[CredSweeper]] = {
    "presidio": Presidio,
    "detect_secrets": DetectSecrets,
    "credsweeper": CredSweeper,
}


def installed_competitors() -> dict[str, Tool | None]:
    """Every competitor, or None where it is not installed."""
    found: dict[str, Tool | None] = {}
    for name, open_tool in COMPETITORS.items():
        try:
            found[name] = open_tool()
        except ImportError:
            found[name] = None
    return found


def _where(text: str, values: Iterable[str | None]) -> list[Span]:
    """Where reported values lie; the whole text for those that cannot be found again."""
    spans = []
    for value in filter(None, values):
        at = [match.span() for match in re.finditer(re.escape(value), text)]
        spans += [Span(*span, SECRET) for span in at or [(0, len(text))]]
    return spans
