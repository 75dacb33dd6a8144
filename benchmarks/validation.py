"""How long does a full validation of the embedded model take?

The model is validated against itself as the asset `validation_reports` does it: each side a child process that is asked
over HTTP, the nine suites at their default size, in looks at 200, 400 and 800 items. The model in service gets other
seeds, so that its answers are others: an equal model is the longest to judge.

- `seconds`: the wall time, starting both models included; building the model beforehand is not.
- `items`: how many were scored, of all suites and of each model; `decision`: what came of it.

With `--quick` there are 20, 40 and 80.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_pipeline.environments.playing import Message
from rl_pipeline.serving.model_child import served_model
from rl_pipeline.training.small_model.building import build_small_model
from rl_pipeline.validation.answers import Answers, ChatEndpoint
from rl_pipeline.validation.suites.embedded import embedded_suites
from rl_pipeline.validation.validating import Budget, validate


@dataclass(frozen=True)
class OtherSeeds:
    """The same model, with other luck."""

    model: Answers

    def answer(
        self, conversations: Sequence[list[Message]], *, max_tokens: int, temperature: float, seeds: Sequence[int]
    ) -> list[str]:
        """As the model answers with other seeds."""
        others = [seed ^ 1 for seed in seeds]
        return self.model.answer(conversations, max_tokens=max_tokens, temperature=temperature, seeds=others)


def main() -> None:
    """Print the figures as JSON, and the progress beside them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    most = 80 if parser.parse_args().quick else 800
    with tempfile.TemporaryDirectory() as home:
        directory, log = build_small_model(Path(home) / "model"), Path(home) / "models.log"
        began = time.monotonic()
        with served_model(directory, "candidate", log) as one, served_model(directory, "control", log) as other:
            report = validate(
                ChatEndpoint(one, "candidate"),
                OtherSeeds(ChatEndpoint(other, "control")),
                embedded_suites(items=most),
                budget=Budget((most // 4, most // 2, most)),
                seed=0,
                tell=lambda line: print(line, file=sys.stderr),
            )
        seconds = time.monotonic() - began
    items = sum(suite.items for suite in report.suites)
    print(json.dumps({"seconds": round(seconds, 1), "items": items, "decision": report.decision}))


if __name__ == "__main__":
    main()
