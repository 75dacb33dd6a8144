"""The port to a world in which a policy acts by text, over several turns; it mirrors AgentGym's client.

A `World` sets tasks and opens environments for them; an `Environment` is one attempt at a task. How a policy is led
through many of them at once is in `playing.py`, which worlds exist in `worlds.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rl_pipeline.errors import PipelineError

if TYPE_CHECKING:  # the sandbox loads this for every program, and the contracts take longer than all the rest
    from rl_pipeline.contracts.training_status import FailureCode


class UnknownWorld(PipelineError):
    """No world has this name."""


class InvalidWorld(PipelineError):
    """A world cannot be what the file of worlds says it is."""


class WorldUnavailable(PipelineError):
    """A world that is somewhere else does not answer; to try again later may help."""

    code: "FailureCode" = "INFRA"
    """What it is to a training whose episodes it sets."""


class InvalidTask(PipelineError):
    """What should describe a task of a world does not."""


@dataclass(frozen=True)
class Task:
    """A start and a goal. Attempts at the same task share its id."""

    id: str
    tier: int
    """Difficulty, from 1."""
    setup: Mapping[str, Any]
    """The task as JSON: `World.task(setup)` is this task again."""


class StepOutcome(NamedTuple):
    """What came of one action."""

    observation: str
    reward: float
    done: bool
    """Nothing can be done here any more."""
    accepted: bool = True
    """Whether the action changed anything."""
    success: bool = False
    """Whether the goal is reached."""
    progress: float = 0.0
    """By how much the action brought the goal nearer, as a share of the longest way, less than 0 if farther away: a
    difference of potentials, by which rewards may be shaped. 0 where the world cannot tell."""


class Environment(Protocol):
    """One attempt at a task. Each method raises `WorldUnavailable` where a world elsewhere does not answer."""

    def reset(self, task: Task) -> str:
        """Start over with `task`; the first observation."""
        ...

    def observe(self) -> str:
        """The last observation again; changes nothing."""
        ...

    def step(self, action: str) -> StepOutcome:
        """Act. Text that is no action is answered, never an error. After the end it changes nothing and stays done."""
        ...


class World(Protocol):
    """Where tasks come from."""

    @property
    def name(self) -> str:
        """By which `find_world` finds it and trajectories refer to it."""
        ...

    @property
    def instructions(self) -> str:
        """How to act in it; stands before the first observation in the user's first message."""
        ...

    @property
    def max_turns(self) -> int:
        """Actions after which an attempt has failed."""
        ...

    @property
    def max_at_once(self) -> int:
        """Attempts that may be under way at the same time, in one process."""
        ...

    def tasks(self, count: int, *, seed: int, tiers: Sequence[int] = ()) -> list[Task]:
        """`count` tasks of the tiers (of all tiers if none is named); the same arguments give the same tasks."""
        ...

    def task(self, setup: Mapping[str, Any]) -> Task:
        """The task that `setup` describes; `InvalidTask` if it describes none."""
        ...

    def open(self, task: Task) -> Environment:
        """An attempt at `task`, ready for its first action. Raises `WorldUnavailable`."""
        ...
