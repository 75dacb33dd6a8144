"""What the whole loop learns in a world: `rl-pipeline demo` for several seeds, against TRL's RLOO with as many steps.

Of each seed: `base`, the success of the base model on held-out tasks, `cycles` of the models that came into service,
`final` of the last, `minutes` from the command to the end of the last cycle, and whether the run `failed`; what a run
did not come to is null. `errors` are the standard errors of `base` and `final`, `time_saved` is the share by which a
solved task costs fewer turns in the end than with the base, those of failed attempts counted. `gain` is the mean over
the seeds that came to an end. All of it goes through the real lineage.

`trl_rloo_final` is what TRL's own RLOO makes of the same base model, on the tasks that the loop's trainings learnt
from, measured on the same held-out tasks, with as many steps of environments: `recorded_steps` by agents in service and
`training_steps` by the trainings on the one side, `trl_steps` on the other. TRL may choose between two learning rates,
by the mean over the seeds (`trl_rate`), and reuses each batch as often as the loop does. In a world of single questions
this is TRL as it is; in crafting its single turns are actions, played out by the base model
(`rl_pipeline_tests/training/single_turn_trl.py`), and it is told the outcome alone, where the loop's trainings are also
told by how much each turn brought the goal nearer.

The seed varies which tasks are played, how answers are drawn, what users say, and what is drawn in the trainings; not
the base model, which is made by one recipe, nor the held-out tasks. How attempts fall into batches and rounds depends
on the machine, so the same seed does not give exactly the same figures.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

SEEDS = 3
REPOSITORY = Path(__file__).resolve().parent.parent


def main() -> None:
    """Run the seeds, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, one cycle, and no comparison")
    parser.add_argument("--world", default="crafting", help="of the demo, such as reasoning-gym:rotate_matrix")
    asked = parser.parse_args()
    runs = []
    for seed in range(1 if asked.quick else SEEDS):
        with tempfile.TemporaryDirectory() as home:
            run = demo(Path(home), seed, asked.world, cycles=1 if asked.quick else 3)
            if "base" in run and not asked.quick:
                run["compared"] = compared(Path(home), seed, asked.world)
            runs.append(run)
    print(json.dumps({"world": asked.world, **figures_of(runs)}))


def figures_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all runs, in the order of their seeds."""
    names = ("base", "cycles", "final", "errors", "time_saved", "minutes", "failed")
    figures: dict[str, Any] = {name: [] for name in names}
    for run in runs:
        ended = "base" in run
        measured = [run["base"], *(cycle["measured"] for cycle in run["cycles"])] if ended else []
        rates = [rate(one) for one in measured]
        figures["base"].append(rates[0] if ended else None)
        figures["cycles"].append(rates[1:] if ended else None)
        figures["final"].append(rates[-1] if ended else None)
        figures["errors"].append([error(measured[0]), error(measured[-1])] if ended else None)
        saved = run["time_saved"] if ended else None
        figures["time_saved"].append(saved and round(saved, 3))
        figures["minutes"].append(round(run["seconds"] / 60, 1) if ended else None)
        figures["failed"].append(run["failed"])
    pairs = zip(figures["base"], figures["final"], strict=True)
    gains = [final - base for base, final in pairs if base is not None]
    return figures | {"gain": round(fmean(gains), 3) if gains else None} | comparison_of(runs)


def comparison_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """TRL's figures at the learning rate that is best for it; nothing where nothing was compared."""
    compared_runs = [run for run in runs if "compared" in run]
    if not compared_runs:
        return {}
    tried = range(len(compared_runs[0]["compared"]["trl"]))

    def at(run: dict[str, Any], place: int) -> dict[str, Any]:
        found: dict[str, Any] = run["compared"]["trl"][place]
        return found

    best = max(tried, key=lambda place: fmean(rate(at(run, place)["measured"]) for run in compared_runs))
    return {
        "trl_rloo_final": [rate(at(run, best)["measured"]) if "compared" in run else None for run in runs],
        "trl_errors": [error(at(run, best)["measured"]) if "compared" in run else None for run in runs],
        "trl_rate": at(compared_runs[0], best)["rate"],
        "recorded_steps": [run["compared"]["steps"]["recorded"] if "compared" in run else None for run in runs],
        "training_steps": [run["compared"]["steps"]["trained"] if "compared" in run else None for run in runs],
        "trl_steps": [at(run, best)["steps"] if "compared" in run else None for run in runs],
    }


def demo(home: Path, seed: int, world: str, cycles: int) -> dict[str, Any]:
    """What one demo came to, as far as it came; what it tells goes to the terminal."""
    command = [str(Path(sysconfig.get_path("scripts")) / "rl-pipeline"), "demo", "--no-sabotage"]
    command += ["--seed", str(seed), "--cycles", str(cycles), "--world", world]
    ended = subprocess.run(command, env={**os.environ, "RL_PIPELINE_HOME": str(home)}, check=False)
    written = home / "demo" / "figures.json"
    found: dict[str, Any] = json.loads(written.read_text()) if written.exists() else {}
    return found | {"failed": ended.returncode != 0}


def compared(home: Path, seed: int, world: str) -> dict[str, Any]:
    """TRL with as many steps as the demo in `home` has made."""
    [run] = [place for place in (home / "demo").iterdir() if place.is_dir()]
    command = [sys.executable, "-m", "rl_pipeline_tests.training.equal_steps", str(run), world, str(seed)]
    told = subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
    return found


def rate(measured: dict[str, Any]) -> float:
    """Of success."""
    return round(float(measured["successes"] / measured["attempts"]), 4)


def error(measured: dict[str, Any]) -> float:
    """Standard error of the rate."""
    share = measured["successes"] / measured["attempts"]
    return round(sqrt(share * (1 - share) / measured["attempts"]), 4)


if __name__ == "__main__":
    main()
