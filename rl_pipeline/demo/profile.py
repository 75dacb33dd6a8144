"""What a demo does, and the settings under which hours pass in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.environment import World
from rl_pipeline.environments.worlds import Worlds, read_worlds
from rl_pipeline.errors import PipelineError
from rl_pipeline.settings import Settings
from rl_pipeline.training.plans.base_models import EMBEDDED
from rl_pipeline.training.small_model.building import WORLDS_FILE


class DemoFailed(PipelineError):
    """The demo did not come to its end, or nothing was learnt; the text says where to look."""


@dataclass(frozen=True, slots=True)
class DemoProfile:
    """How much is played, and with what luck."""

    cycles: int = 3
    episodes: int = 480
    """New trajectories after which the sensor asks for a training: the threshold of 5,000, scaled down."""
    agents: int = 32
    """That play at once."""
    measured: int = 400
    """Held-out tasks on which every model in service is measured."""
    least_gain: float = 0.05
    """Of success on those, over the base model, for each cycle up to the third: a run that gains less fails."""
    sabotage: bool = True
    seed: int = 0
    world: str = CraftingWorld.name
    """One that a small model is made for."""

    def open_world(self) -> World:
        """The world itself. Raises `UnknownWorld`."""
        return Worlds(read_worlds(WORLDS_FILE)).find(self.world)


FAST_CLOCK: Mapping[str, object] = MappingProxyType(
    {
        "ingest_wait_seconds": 30.0,
        "rl_algorithm": "rloo",
        "validation_items": 160,
        "rollout_strategy": "canary",
        "canary_initial_traffic": 0.25,
        "canary_cautious_traffic": 0.25,
        "canary_ramp_hours": 20 / 3600,
        "canary_step_samples": "40,40,80",
        "canary_settling_seconds": 1.0,
        "canary_reward_maturity_minutes": 1.0,
        "canary_bake_hours": 2 / 3600,
        "gateway_session_idle_seconds": 2.0,
    }
)
"""Always a canary, from 25 %, of at least twenty seconds in place of four hours and a few dozen sessions to each share.
Ingest waits for the attempts of a cycle, or half a minute: a run costs seconds of the cores on which all the rest runs.
An outcome that takes longer than a second on its way, and a reward longer than a minute, counts for none."""


_ELSEWHERE = tuple(
    name
    for name in Settings.model_fields
    if name.endswith(("_url", "_uri", "_endpoint", "_cluster", "_hostfile", "_command"))
)
"""What names a server, other machines, or a program that changes what is served there."""


def settings_of_demo(settings: Settings, profile: DemoProfile, home: Path) -> Settings:
    """All of it in `home`, the fast clock, and the threshold of the profile."""
    foreign = [name.upper() for name in _ELSEWHERE if name in settings.model_fields_set]
    if foreign:
        raise DemoFailed(f"the demo makes up data and must not reach real servers: unset {' and '.join(foreign)}")
    own = {
        "rl_pipeline_home": home,
        "dagster_home": None,
        "model_storage_path": str(home / "objects" / "rl-checkpoints"),
        "trajectory_storage_path": str(home / "objects" / "trajectories"),
        "training_work_directory": home / "training",
        "ingest_pending": profile.episodes,
        "rl_training_threshold": profile.episodes,
        "rl_training_sample_size": profile.episodes * 2,
        "rl_training_seed": profile.seed,
    }
    return settings.model_copy(update={**FAST_CLOCK, **own, **_world_of_demo(settings, profile)})


def _world_of_demo(settings: Settings, profile: DemoProfile) -> dict[str, object]:
    """Where the trainings find another world than crafting, and the model that half knows it, unless another is set."""
    if profile.open_world().name == CraftingWorld.name:
        return {}
    model = {} if "rl_base_model" in settings.model_fields_set else {"rl_base_model": f"{EMBEDDED}@{profile.world}"}
    return {"worlds_file": WORLDS_FILE, **model}
