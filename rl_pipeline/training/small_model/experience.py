"""What the small model does at tasks that it half knows: the experience that it learns from.

As a program (`python -m rl_pipeline.training.small_model.experience <directory> <tasks> <attempts> <seed>`) it builds
the model in the directory, if it is not there, and prints the trajectories, one a line.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from rl_pipeline.contracts import Trajectory, serialize
from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.recording import Recorder
from rl_pipeline.training.small_model.building import build_small_model

_VERSION = "embedded-small-base"


def crafting_experience(directory: Path, *, tasks: int, attempts: int, seed: int, start: datetime) -> list[Trajectory]:
    """Attempts of the model in `directory` at crafting, several at each task, as trajectories that begin at `start`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rl_pipeline.training.program.generation import play_with_model

    world = CraftingWorld()
    chosen = [task for task in world.tasks(tasks, seed=seed) for _ in range(attempts)]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    played = play_with_model(world, chosen, model, tokenizer, generator=torch.Generator().manual_seed(seed))
    recorder = Recorder(world, "crafting-agent", "embedded-small", _VERSION, 1.0)
    return recorder.record(
        [one.episode for one in played],
        start=start,
        randomness=Random(seed),  # noqa: S311 - to repeat it is the point
        samplings=[one.transcript.samplings(_VERSION) for one in played],
    )


if __name__ == "__main__":
    model_directory, numbers = build_small_model(Path(sys.argv[1])), [int(word) for word in sys.argv[2:]]
    made = crafting_experience(
        model_directory, tasks=numbers[0], attempts=numbers[1], seed=numbers[2], start=datetime.now(UTC)
    )
    for one in made:
        sys.stdout.write(f"{serialize(one).decode()}\n")
