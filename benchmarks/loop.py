"""What the whole loop learns: `rl-pipeline demo` for several seeds, against TRL's RLOO with as many episodes.

Of each seed: `base`, the success of the base model on held-out tasks, `cycles` of the models that came into service,
`final` of the last, `minutes` from the command to the end of the last cycle. All of it goes through the real lineage.

`trl_rloo_final` is what TRL's own RLOO makes of the same base model, on the same held-out tasks, with as many episodes
as the loop's trainings have played: single turns, because TRL's RLOO has no others, with the rest of an episode played
by the base model (`rl_pipeline_tests/training/single_turn_trl.py`).
"""

import argparse
import json
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

SEEDS = 3


def main() -> None:
    """Run the seeds, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, one cycle, and no comparison")
    quick = parser.parse_args().quick
    figures: dict[str, Any] = {"base": [], "cycles": [], "final": [], "minutes": []}
    for seed in range(1 if quick else SEEDS):
        with tempfile.TemporaryDirectory() as home:
            found = demo(Path(home), seed, cycles=1 if quick else 3)
        rates = [rate(found["base"]), *(rate(cycle["measured"]) for cycle in found["cycles"])]
        figures["base"].append(rates[0])
        figures["cycles"].append(rates[1:])
        figures["final"].append(rates[-1])
        figures["minutes"].append(round(found["seconds"] / 60, 1))
    figures["gain"] = round(fmean(figures["final"]) - fmean(figures["base"]), 3)
    print(json.dumps(figures))


def demo(home: Path, seed: int, cycles: int) -> dict[str, Any]:
    """The figures of one demo; what it tells goes to the terminal."""
    command = [str(Path(sysconfig.get_path("scripts")) / "rl-pipeline"), "demo", "--no-sabotage"]
    command += ["--seed", str(seed), "--cycles", str(cycles)]
    subprocess.run(command, env={**os.environ, "RL_PIPELINE_HOME": str(home)}, check=True)
    found: dict[str, Any] = json.loads((home / "demo" / "figures.json").read_text())
    return found


def rate(measured: dict[str, Any]) -> float:
    """Of success."""
    return round(float(measured["successes"] / measured["attempts"]), 4)


if __name__ == "__main__":
    main()
