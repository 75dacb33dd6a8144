"""How fast is redaction, and how much of Vectorscan's own speed is left?

Redacts generated trajectories with all packaged rules, from JSON bytes to JSON bytes, and counts the CPU seconds of
this one process. Beside it, on the same bytes: the bare Vectorscan scan for the same anchors; and on a smaller slice,
which would else take hours, Presidio's pattern recognizers and detect-secrets with all its plugins. `mb_per_s_core`
counts 10^6 bytes of JSON; `of_scan_limit` is ours / bare scan, `over_...` ours / the competitor. `--profile` shows what
each rule costs on its own.
"""

import argparse
import gc
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the corpus, when started as a script

from benchmarks.corpus import realistic_trajectories
from rl_pipeline.redaction.leaves import Leaves, NameCache
from rl_pipeline.redaction.passage import Passage
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.redaction.rule import packaged_rules
from rl_pipeline.redaction.scanner import AnchorScanner

SEED = 7
BATCH = 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller inputs, under 60 s")
    parser.add_argument("--profile", action="store_true", help="what each rule costs, instead of the comparison")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.profile:
        profile(islice(messages(), 120))
        return
    megabytes = 12 if arguments.quick else 100
    redactor = Redactor(RedactionPolicy(RedactionKey.parse("v1:" + "benchmark" * 4)))
    limit = AnchorScanner([rule for rule in packaged_rules() if rule.on], {})
    ours, bare, found = measure(redactor, limit, megabytes * 1_000_000)
    small = list(take(messages(), 150_000 if arguments.quick else 600_000))
    others = {"Presidio, patterns": presidio_speed(small), "detect-secrets": detect_secrets_speed(small)}
    print(f"{megabytes} MB of trajectories, {len(packaged_rules())} rules; competitors on {len(small)} trajectories\n")
    report(ours, bare, others, found, megabytes)


def messages() -> Iterator[bytes]:
    """The corpus, message by message."""
    return map(orjson.dumps, realistic_trajectories(1_000_000, SEED))


def take(source: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Messages of `size` bytes together, the last one whole."""
    while size > 0 and (message := next(source, None)) is not None:
        size -= len(message)
        yield message


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(redactor: Redactor, limit: AnchorScanner, size: int) -> tuple[float, float, Counter[str]]:
    """MB per CPU second of redaction and of the bare scan, in turns batch by batch, and what was found."""
    source = messages()
    seconds, bare_seconds, done = 0.0, 0.0, 0
    counts: Counter[str] = Counter()
    for message in islice(messages(), 50):  # names of fields are learnt once
        redactor.redact(orjson.loads(message))
    while done < size:
        batch = list(take(source, min(BATCH, size - done)))
        gc.collect()
        seconds += cpu_seconds(lambda batch=batch: [redact(redactor, message, counts) for message in batch])
        bare_seconds += cpu_seconds(lambda batch=batch: [scan(limit, message) for message in batch])
        done += sum(map(len, batch))
    return done / 1e6 / seconds, done / 1e6 / bare_seconds, counts


def scan(scanner: AnchorScanner, message: bytes) -> None:
    scanner.database.scan(message, match_event_handler=ignore)


def ignore(*_: object) -> None:
    """Takes Vectorscan's reports and does nothing."""


def redact(redactor: Redactor, message: bytes, counts: Counter[str]) -> int:
    redacted = redactor.redact(orjson.loads(message))
    counts.update(redacted.counts)
    return len(orjson.dumps(redacted.tree))


def leaves(messages: Iterable[bytes]) -> list[str]:
    """The texts of the messages: competitors are not asked to read JSON."""
    return [text for message in messages for text in Leaves(orjson.loads(message), NameCache()).texts]


def presidio_speed(messages: Sequence[bytes]) -> float | None:
    """MB per CPU second of the recognizers that need no language model; None if it is not installed."""
    try:
        from presidio_analyzer import PatternRecognizer, RecognizerRegistry
        from presidio_analyzer.nlp_engine import NlpArtifacts
    except ImportError:
        return None
    registry = RecognizerRegistry()
    registry.load_predefined_recognizers(languages=["en"])
    recognizers = [one for one in registry.recognizers if isinstance(one, PatternRecognizer)]
    nothing = NlpArtifacts(entities=[], tokens=[], tokens_indices=[], lemmas=[], nlp_engine=None, language="en")

    def work() -> None:
        for text in leaves(messages):
            for recognizer in recognizers:
                recognizer.analyze(text, recognizer.supported_entities, nothing)

    return sum(map(len, messages)) / 1e6 / cpu_seconds(work)


def detect_secrets_speed(messages: Sequence[bytes]) -> float | None:
    """MB per CPU second of all plugins with the default filters, line by line; None if it is not installed."""
    try:
        from detect_secrets.core.scan import scan_line
        from detect_secrets.settings import default_settings
    except ImportError:
        return None

    def work() -> None:
        with default_settings():
            for text in leaves(messages):
                for line in text.splitlines():
                    list(scan_line(line))

    return sum(map(len, messages)) / 1e6 / cpu_seconds(work)


def profile(messages: Iterable[bytes]) -> None:
    """Each rule on its own: how often its anchor fires per MB of text, how often it finds, and what that takes."""
    passages = [Passage(leaves([message])) for message in messages]
    megabytes = sum(len(passage.buffer) for passage in passages) / 1e6
    rows = []
    for rule in packaged_rules():
        scanner = AnchorScanner([rule], {})
        seconds = cpu_seconds(lambda scanner=scanner: [scanner.findings(passage) for passage in passages])
        hits = sum(len(scanner.hits(passage.buffer)) for passage in passages)
        found = sum(len(scanner.findings(passage)) for passage in passages)
        rows.append((seconds * 1000 / megabytes, hits / megabytes, found / megabytes, rule.id))
    print(f"{'rule':40}{'ms/MB':>10}{'hits/MB':>10}{'found/MB':>10}")
    for milliseconds, hits, found, rule_id in sorted(rows, reverse=True)[:40]:
        print(f"{rule_id:40}{milliseconds:10.2f}{hits:10.1f}{found:10.1f}")


def report(ours: float, bare: float, others: dict[str, float | None], counts: Counter[str], megabytes: int) -> None:
    print(f"{'':34}{'MB per CPU second':>20}{'ours is':>12}")
    print(f"{'redaction, JSON in and out':34}{ours:20.1f}")
    print(f"{'bare Vectorscan scan':34}{bare:20.1f}{ours / bare:11.2f} x")
    for name, speed in others.items():
        print(f"{name:34}" + (f"{speed:20.3f}{ours / speed:11.0f} x" if speed else f"{'not installed':>20}"))
    found = ", ".join(f"{rule} {count}" for rule, count in counts.most_common(8))
    print(f"\nfound {sum(counts.values())} values: {found} …\n")
    presidio, detect_secrets = others.values()
    figures = {
        "mb_per_s_core": round(ours, 2),
        "of_scan_limit": round(ours / bare, 3),
        "over_presidio": presidio and round(ours / presidio, 1),
        "over_detect_secrets": detect_secrets and round(ours / detect_secrets, 1),
        "scan_mb_per_s": round(bare, 1),
        "findings_per_mb": round(sum(counts.values()) / megabytes, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
