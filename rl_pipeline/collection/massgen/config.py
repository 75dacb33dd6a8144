"""How MassGen's agents are recorded, in the names and defaults of its documentation."""

from dataclasses import dataclass, field
from typing import Literal

from rl_pipeline.collection.outbox import Outbox

NATS_HOST, NATS_PORT = "127.0.0.1", 4222


@dataclass
class StoreConfig:
    """Where traces go: into files below `path`, or through an outbox to the stream."""

    type: Literal["local", "remote"] = "local"
    path: str = "./rl_data"
    """For `remote`, the outbox is the directory `outbox` in it."""
    host: str = NATS_HOST
    """The NATS server of a `remote` store."""
    port: int = NATS_PORT
    disk_seconds: float = 5.0
    """How long the end of a chat waits at most until its trace is on the disk."""
    trajectory_storage_path: str | None = None
    """For `remote`: where the pipeline keeps trajectories; those of more than 512 KB are refused without it."""
    s3_endpoint_url: str | None = None
    outbox: Outbox | None = None
    """For `remote`: the outbox of a program that has one already, such as one with credentials."""


@dataclass
class AlgorithmConfig:
    """What a training is to be like. Agents only collect: nothing in their process reads this."""

    algorithm: str = "lightningrl"
    learning_rate: float = 1e-5
    batch_size: int = 32
    num_epochs: int = 10
    gamma: float = 0.99
    lambda_gae: float = 0.95
    clip_epsilon: float = 0.2
    num_prompt_candidates: int = 5
    prompt_diversity_threshold: float = 0.7


@dataclass
class RLConfig:
    """What is collected."""

    enable_rl: bool = False
    """For agents and orchestrators that are not told by their own `enable_rl`."""
    store_config: StoreConfig = field(default_factory=StoreConfig)
    algorithm_config: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    enable_tool_rewards: bool = True
    enable_answer_quality_rewards: bool = True
    enable_coordination_rewards: bool = True
    enable_human_feedback: bool = False
    collect_only: bool = False
    """Training never happens in an agent's process, so that this changes nothing there."""
    checkpoint_dir: str = "./rl_checkpoints"
    log_dir: str = "./rl_logs"
