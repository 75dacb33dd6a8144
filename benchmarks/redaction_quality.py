"""How much of what is sensitive is found, and how little else, beside Presidio, detect-secrets and CredSweeper?

Measures every set of `RL_PIPELINE_TEST_DATA`/redaction that has one of the two formats of `quality/sets.py`, and sets
that the project generates itself. Presidio (its pattern recognizers: no language model is used) is measured on personal
data, detect-secrets (all plugins, default filters) and CredSweeper (default settings with its machine learning) on
secrets, ours on all. How findings are scored is written in `quality/scoring.py`. A competitor that is not installed has
null figures: `pip install '.[bench]'`.
"""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

from quality.generated import generated_sets
from quality.scoring import Score, score_secrets, score_spans
from quality.sets import SecretSet, SpanSet, sets_in
from quality.tools import COMPETITORS, Ours, Tool, installed_competitors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller generated sets, under 60 s")
    quick = parser.parse_args().quick
    tools: dict[str, Tool | None] = {"ours": Ours(), **installed_competitors()}
    figures: dict[str, float | None] = {}
    print(
        f"{'set':34}{'tool':16}{'of':16}{'precision':>10}{'recall':>10}{'F1':>10}{'found':>8}{'missed':>8}{'false':>8}"
    )
    for each in [*public_sets(), *generated_sets(100 if quick else 2000)]:
        for name, tool in tools.items():
            for entity, score in scores_of(name, tool, each):
                show(each.name, name, entity, score)
                prefix = "_".join(filter(None, (each.name, name, entity.lower())))
                for figure in ("precision", "recall", "f1"):
                    value = getattr(score, figure) if score else None
                    figures[f"{prefix}_{figure}"] = None if value is None else round(value, 4)
    print()
    print(json.dumps(figures))


def public_sets() -> Iterator[SpanSet | SecretSet]:
    """The sets of the test data, where there are any."""
    if directory := os.environ.get("RL_PIPELINE_TEST_DATA"):
        yield from sets_in(Path(directory, "redaction"))


def scores_of(name: str, tool: Tool | None, each: SpanSet | SecretSet) -> Iterator[tuple[str, Score | None]]:
    """The score of the whole set under the empty name, then those of its entities; nothing where it does not apply."""
    applies = name == "ours" or applies_to(name, each)
    if not applies:
        return
    if tool is None:
        yield "", None
    elif isinstance(each, SecretSet):
        yield "", score_secrets(tool, each)
    else:
        yield from score_spans(tool, each).items()


def applies_to(competitor: str, each: SpanSet | SecretSet) -> bool:
    """Whether the set asks for anything that the competitor looks for."""
    asked = {"SECRET"} if isinstance(each, SecretSet) else set(each.entities)
    return bool(asked & COMPETITORS[competitor].entities)


def show(set_name: str, tool: str, entity: str, score: Score | None) -> None:
    if score is None:
        print(f"{set_name:34}{tool:16}not installed")
        return
    three = "".join(
        f"{'-':>10}" if value is None else f"{value:10.3f}" for value in (score.precision, score.recall, score.f1)
    )
    print(f"{set_name:34}{tool:16}{entity.lower() or 'all':16}{three}{score.found:8}{score.missed:8}{score.false:8}")


if __name__ == "__main__":
    main()
