"""What the pipeline is spared and what it keeps: an agent that writes a password down, and a broken message."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.contracts import serialize, validate_trajectory
from rl_pipeline.demo.population import Population
from rl_pipeline.demo.scene import Scene
from rl_pipeline.environments.crafting import CraftingWorld, next_command
from rl_pipeline.environments.environment import Task, World
from rl_pipeline.environments.playing import Act, Conversation, play
from rl_pipeline.environments.reasoning import ReasoningGymWorld
from rl_pipeline.environments.recording import Recorder
from rl_pipeline.ingestion.dead_letters import show_dead_letter
from rl_pipeline.stores.stream import OutgoingMessage
from rl_pipeline.stores.topology import TRAJECTORIES

_AGENT = "careless-agent"
_LEAK = "The deploy failed: password = 'correct-horse-7-battery', tell ops@northwind.example about it."
_STORED = "SELECT document FROM trajectories FINAL WHERE agent_id = {agent:String} LIMIT 1"


def publish_carelessly(agents: Population) -> int:
    """A trajectory with a secret in it, past the edge that would have redacted it, and one that is no JSON: whose
    sequence in the stream."""
    world = agents.world
    [task] = agents.tasks(1, seed=0, tiers=(1,))
    episodes = play(world, [task], _knowing(world, task))
    randomness = Random(datetime.now(UTC).timestamp())  # noqa: S311 - ids, not secrets
    [recorded] = Recorder(world, _AGENT, "a-script").record(episodes, start=datetime.now(UTC), randomness=randomness)
    told = json.loads(serialize(recorded))
    told["turns"][0]["observation"]["content"] += f"\n{_LEAK}"
    message = outgoing_message(validate_trajectory(told))
    broken = OutgoingMessage(message.subject, message.data[:-1], f"broken-{message.message_id}")
    stored = agents.scene.stream.publish_many([message, broken])
    return max(published.sequence for published in stored)


def show_what_became_of_it(scene: Scene, broken: int) -> None:
    """What the warehouse has in place of the secret, and where the broken message is."""
    [row] = scene.rows(_STORED, agent=_AGENT)
    seen = json.loads(row["document"])["turns"][0]["observation"]["content"].splitlines()[-1]
    scene.say(f"A careless agent had published: {_LEAK}")
    scene.say(f"The warehouse has:              {seen}")
    letter = show_dead_letter(scene.stream, TRAJECTORIES.name, broken)
    scene.say(f"A broken message is kept as a dead letter: {letter.reason} at {letter.path}; {letter.advice}")


def _knowing(world: World, task: Task) -> Act:
    """Who knows the way, or the answer."""
    if isinstance(world, ReasoningGymWorld):
        return lambda _: [world.answer(task)]
    twin = CraftingWorld().open(task)

    def know_the_way(conversations: Sequence[Conversation]) -> list[str]:
        commands = [next_command(twin.goal, twin.inventory) for _ in conversations]
        twin.step(commands[0])
        return commands

    return know_the_way
