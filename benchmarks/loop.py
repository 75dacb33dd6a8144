"""What the whole loop learns: `rl-pipeline demo` for several seeds.

Of each seed: `base`, the success of the base model on held-out tasks, `cycles` of the models that came into service,
`final` of the last, `minutes` from the command to the end of the last cycle, and whether the run `failed`; what a run
did not come to is null. `gain` is the mean over the seeds that came to an end. All of it goes through the real lineage.

The seed varies which tasks are played, how answers are drawn, what users say, and what is drawn in the trainings; not
the base model, which is made by one recipe, nor the held-out tasks. How attempts fall into batches and rounds depends
on the machine, so the same seed does not give exactly the same figures.
"""

import argparse
import json
import os
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

SEEDS = 3


def main() -> None:
    """Run the seeds, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, one cycle")
    quick = parser.parse_args().quick
    runs = []
    for seed in range(1 if quick else SEEDS):
        with tempfile.TemporaryDirectory() as home:
            runs.append(demo(Path(home), seed, cycles=1 if quick else 3))
    print(json.dumps(figures_of(runs)))


def figures_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all runs, in the order of their seeds."""
    figures: dict[str, Any] = {"base": [], "cycles": [], "final": [], "minutes": [], "failed": []}
    for run in runs:
        ended = "base" in run
        rates = [rate(run["base"]), *(rate(cycle["measured"]) for cycle in run["cycles"])] if ended else []
        figures["base"].append(rates[0] if ended else None)
        figures["cycles"].append(rates[1:] if ended else None)
        figures["final"].append(rates[-1] if ended else None)
        figures["minutes"].append(round(run["seconds"] / 60, 1) if ended else None)
        figures["failed"].append(run["failed"])
    pairs = zip(figures["base"], figures["final"], strict=True)
    gains = [final - base for base, final in pairs if base is not None]
    return figures | {"gain": round(fmean(gains), 3) if gains else None}


def demo(home: Path, seed: int, cycles: int) -> dict[str, Any]:
    """What one demo came to, as far as it came; what it tells goes to the terminal."""
    command = [str(Path(sysconfig.get_path("scripts")) / "rl-pipeline"), "demo", "--no-sabotage"]
    command += ["--seed", str(seed), "--cycles", str(cycles)]
    ended = subprocess.run(command, env={**os.environ, "RL_PIPELINE_HOME": str(home)}, check=False)
    written = home / "demo" / "figures.json"
    found: dict[str, Any] = json.loads(written.read_text()) if written.exists() else {}
    return found | {"failed": ended.returncode != 0}


def rate(measured: dict[str, Any]) -> float:
    """Of success."""
    return round(float(measured["successes"] / measured["attempts"]), 4)


if __name__ == "__main__":
    main()
