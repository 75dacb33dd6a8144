"""The door through which a task executor lets its agents learn, with the names and the nine steps of S3.

What is behind it is a `Player` for each agent. Its model is the pipeline's, so all agents learn as one: what they do is
recorded, and a training learns from the records of all of them.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Protocol
from uuid import UUID, uuid5

from rl_pipeline.agents.memory import InProcessMemory, MDPTransition, MemoryManager
from rl_pipeline.agents.player import Attempt, Beginning, Player
from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.contracts import TrainingRequest
from rl_pipeline.environments.environment import Task
from rl_pipeline.errors import PipelineError
from rl_pipeline.rewards import formulas
from rl_pipeline.stores.stream import Stream

_log = logging.getLogger("rl_pipeline.agents")
_REQUESTS = UUID("0f9c6d57-3c55-4d0f-9a0f-2f1c7b0c4e11")
# Of the specified weights, those of what can be said of a task by itself.
_TASK_COMPLETION, _USER_FEEDBACK = 0.40, 0.25


class UnknownTask(PipelineError):
    """There is no task of this id."""


class RLClient(Protocol):
    """The way to what learns."""

    def store_transition(self, transition: MDPTransition) -> None:
        """Keep it to be learnt from; returns at once."""
        ...

    async def train_step(self) -> None:
        """Have what is kept learnt from. Raises `PipelineError` where it cannot be asked for."""
        ...


class RewardCalculator(Protocol):
    """What a finished task is worth."""

    def calculate(self, result: Attempt) -> float:
        """From 0 to 1."""
        ...


@dataclass(frozen=True, slots=True)
class PipelineClient:
    """The pipeline as the client: a training is asked for by a request like anybody else's."""

    stream: Stream
    clock: Callable[[], datetime]
    requester: str = "mdp-agent-controller"

    def store_transition(self, transition: MDPTransition) -> None:
        """Nothing is left to do: the recorder has sent the turns, and the view `training_transitions` has them once
        they are scored."""

    async def train_step(self) -> None:
        """See `RLClient`."""
        now = self.clock()
        request = TrainingRequest.model_validate(
            {
                "training_job_id": str(uuid5(_REQUESTS, f"{self.requester} {now.isoformat()}")),
                "timestamp": now,
                "requester": self.requester,
                "trigger_reason": "threshold_reached",
                "training_config": {},
            }
        )
        message = outgoing_message(request)
        await asyncio.to_thread(self.stream.publish, message.subject, message.data, message.message_id, message.headers)


class TaskReward:
    """By the pipeline's own formulas: whether the goal was reached, and what the user thought of it. How it compares
    with others, the pipeline finds out."""

    def calculate(self, result: Attempt) -> float:
        """See `RewardCalculator`."""
        done = formulas.task_completion("success" if result.success else "failed", None)
        said = [result.feedback.kind] if result.feedback else []
        liked = formulas.user_feedback(said, [0] * len(said), [""] * len(said))
        return (_TASK_COMPLETION * done + _USER_FEEDBACK * liked) / (_TASK_COMPLETION + _USER_FEEDBACK)


@dataclass(frozen=True, slots=True)
class MDPState:
    """A task that was begun, and what is seen of it."""

    task: Task
    beginning: Beginning


@dataclass(frozen=True, slots=True)
class MDPAction:
    """What an agent sets out to do: the task, with what it remembers in front of it."""

    player: Player
    state: MDPState
    recalled: str


@dataclass(frozen=True, slots=True)
class MDPAgent:
    """An agent as a Markov decision process has it."""

    player: Player
    at_work: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Its tasks follow each other."""

    async def observe(self, task: Task) -> MDPState:
        """Begin the task. Raises `WorldUnavailable`."""
        return MDPState(task, await self.player.begin(task))

    async def act(self, state: MDPState, memories: Sequence[MDPTransition]) -> MDPAction:
        """What to do. The answers are drawn turn by turn while it is done, at the player's `temperature`: above 0 it
        explores."""
        lines = [
            f"Earlier: {one.state} You said: {'; '.join(one.action)}. Then: {one.next_state} Worth {one.reward:.2f}."
            for one in memories
        ]
        return MDPAction(self.player, state, "\n".join(lines))


class MDPAgentController:
    """Gives tasks to agents, and what comes of them to what learns."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        make_player: Callable[[str], Player],
        rl_client: RLClient,
        randomness: Random,
        *,
        memory_manager: MemoryManager | None = None,
        reward_calculator: RewardCalculator | None = None,
        batch_size: int | None = None,
    ) -> None:
        """`tasks` by their ids; `make_player` makes the player of an agent; `randomness` is where attempts have their
        luck from.

        After every `batch_size` tasks a training is asked for; without one it is left to the pipeline's own threshold.
        """
        self.mdp_agents: dict[str, MDPAgent] = {}
        self.rl_client = rl_client
        self.memory_manager: MemoryManager = memory_manager or InProcessMemory()
        self.reward_calculator: RewardCalculator = reward_calculator or TaskReward()
        self._tasks = tasks
        self._make_player = make_player
        self._randomness = randomness
        self._batch_size = batch_size
        self._not_learnt = 0
        self._places: dict[int, asyncio.Semaphore] = {}

    async def execute_with_learning(self, task_id: str, agent_id: str) -> Attempt:
        """Have the agent do the task; many may be under way at once.

        What was cut off (`Attempt.error`) is neither rewarded nor remembered. Raises `UnknownTask`, and
        `WorldUnavailable` where the task cannot be begun.
        """
        task = self._tasks.get(task_id)
        if task is None:
            raise UnknownTask(f"there is no task {task_id[:80]!r}: add it to the controller's tasks")
        # 1. Get or create the agent.
        agent = self.get_or_create_mdp_agent(agent_id)
        world = agent.player.world
        place = self._places.setdefault(id(world), asyncio.Semaphore(world.max_at_once))
        async with agent.at_work, place:
            seen, result = await self._do(agent, task)
        if result.error is None:
            # 6. Calculate the reward.
            reward = self.reward_calculator.calculate(result)
            # 7. Store the transition for learning.
            said, last = [message["content"] for message in result.messages[1::2]], result.messages[-1]["content"]
            transition = MDPTransition(seen, said, reward, last, agent_id, task_id)
            self.rl_client.store_transition(transition)
            # 8. Update the memory.
            await asyncio.to_thread(self.memory_manager.store_episodic, transition)
            # 9. Trigger learning if a batch is ready.
            self._not_learnt += 1
            if self.should_trigger_learning():
                await self._learn()
        return result

    def get_or_create_mdp_agent(self, agent_id: str) -> MDPAgent:
        """The agent of this id, which is made with its first task."""
        if agent_id not in self.mdp_agents:
            self.mdp_agents[agent_id] = MDPAgent(self._make_player(agent_id))
        return self.mdp_agents[agent_id]

    async def execute_action(self, action: MDPAction) -> Attempt:
        """Do it, to the end of the task; it is recorded."""
        luck = Random(self._randomness.getrandbits(64))  # noqa: S311 - to repeat it is the point
        return await action.player.attempt(
            action.state.task, luck, beginning=action.state.beginning, recalled=action.recalled
        )

    def should_trigger_learning(self) -> bool:
        """Whether a batch is ready."""
        return self._batch_size is not None and self._not_learnt >= self._batch_size

    async def _do(self, agent: MDPAgent, task: Task) -> tuple[str, Attempt]:
        """What the agent saw first, and what came of it. By itself, because a world takes an environment back when
        nobody holds it any more: that must be so before the next attempt may begin."""
        # 2. Create the state from the task.
        state = await agent.observe(task)
        # 3. Retrieve relevant memories.
        memories = await asyncio.to_thread(self.memory_manager.retrieve_relevant, state.beginning.seen)
        # 4. Generate an action, with exploration.
        action = await agent.act(state, memories)
        # 5. Execute it.
        return state.beginning.seen, await self.execute_action(action)

    async def _learn(self) -> None:
        # Set back before it is waited for: whoever ends meanwhile asks for no second training of the same batch.
        batch, self._not_learnt = self._not_learnt, 0
        try:
            await self.rl_client.train_step()
        except PipelineError as error:
            self._not_learnt += batch
            _log.warning("no training could be asked for; the next task asks again: %s", error)
