"""The plan of one attempt: everything the training program needs to know, and nothing of where it came from.

A plan is data. It is made by `planning.py`, changed from attempt to attempt by `attempts.py`, and read by the program.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rl_pipeline.contracts.training_request import Algorithm
from rl_pipeline.environments.worlds import WorldDefinitions

ONLINE_ALGORITHMS: frozenset[Algorithm] = frozenset({"ppo", "rloo", "grpo", "reinforce"})

Positive = Annotated[int, Field(ge=1)]
PositiveNumber = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class LoraPlan(_Part):
    """Low-rank adapters in place of all weights."""

    rank: Positive = 16
    alpha: PositiveNumber = 32.0
    dropout: Share = 0.05
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class DistributionPlan(_Part):
    """On what the program runs. `processes` counts all nodes."""

    processes: Positive = 1
    nodes: Positive = 1
    hostfile: str | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    deepspeed: bool = True
    """False: one process without DeepSpeed, where its operators cannot be compiled."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 2
    can_compile: bool = True
    """Whether there is a compiler for DeepSpeed's operators, of which offloading takes one."""
    offload_optimizer: bool = False
    offload_parameters: bool = False
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    gradient_checkpointing: bool = False
    threads: Positive = 1
    """Of each process, where it computes on cores."""
    memory_limit_gb: PositiveNumber | None = None
    """The most that one process may take; None for no limit but the machine's."""


class OptimizationPlan(_Part):
    """How the weights move. The global batch is processes x micro_batch x accumulation sequences (or episodes)."""

    learning_rate: PositiveNumber = 1e-5
    schedule: Literal["linear", "cosine", "constant"] = "cosine"
    warmup_share: Share = 0.03
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_gradient_norm: PositiveNumber = 1.0
    micro_batch: Positive = 1
    accumulation: Positive = 1
    epochs: Positive = 3
    max_steps: Positive | None = None
    """Ends the training before its epochs do."""
    max_tokens: Positive = 4096
    """Longer conversations are cut to their last turns that fit."""


class PreferencePlan(_Part):
    """DPO."""

    beta: PositiveNumber = 0.1
    sft_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the likelihood of the chosen side, which keeps DPO from pushing both sides down."""


class RewardModelPlan(_Part):
    """The reward model, which is learnt before the policy: it begins at random, and learns faster than a policy may."""

    learning_rate: PositiveNumber | None = None
    """None: 1e-5 for all weights, 1e-4 for adapters."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    epochs: Positive = 3
    batch: Positive = 32
    """Pairs per step of the optimiser, of all processes."""


class OnlinePlan(_Part):
    """PPO, RLOO, GRPO and REINFORCE. An iteration plays the global batch of episodes, in groups on the same task."""

    rollouts: Literal["environment", "reward_model"] = "environment"
    environment: str | None = None
    group_size: Annotated[int, Field(ge=2)] = 4
    curriculum_floor: Share = 1.0
    """Share of the groups that play any prompt, others play what most can be learnt of. 1: all prompts, one by one."""
    updates_per_iteration: Positive = 1
    clip_epsilon: Annotated[float, Field(ge=0)] = 0.2
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.02
    gamma: Share = 0.99
    gae_lambda: Share = 0.95
    shaping: Annotated[float, Field(ge=0)] = 0.0
    """What all of the way to the goal is worth beside the goal, paid turn by turn as the world tells progress. Above 0,
    turns are judged each by what followed it, in place of whole episodes."""
    value_coefficient: Annotated[float, Field(ge=0)] = 0.5
    entropy_coefficient: Annotated[float, Field(ge=0)] = 0.0
    temperature: PositiveNumber = 1.0
    max_new_tokens: Positive = 512
    """Of one turn."""
    max_turns: Positive = 10
    gather_for_generation: bool = True
    """With ZeRO-3: whether each process holds all weights while it plays. False where they do not fit: slower."""


class EvaluationPlan(_Part):
    """What is measured on the holdout before and after."""

    enabled: bool = True
    episodes: Positive = 200
    """Played on held-out tasks, where there is an environment."""


class CheckpointPlan(_Part):
    """When the state is saved, and how many states are kept beside the best one."""

    save_interval: Positive = 1000
    max_checkpoints: Positive = 5


class MemoryEstimate(_Part):
    """What the states of the model take (weights, gradients, optimiser), by DeepSpeed's own estimators, and what is
    held of weights beside them: to compare with, to score, while the policy plays, and for the delivery.

    Activations and the cache of generation come on top. Without GPUs the two are the same memory.
    """

    device_gb: PositiveNumber
    """On each GPU, or in each process where there is none."""
    playing_gb: Annotated[float, Field(ge=0)] = 0.0
    """Of that, all weights at once while the policy plays (`gather_for_generation`)."""
    host_gb: Annotated[float, Field(ge=0)]
    """In the memory of each node."""


class TrainingPlan(_Part):
    """One attempt at a training job."""

    job_id: str
    attempt: Positive = 1
    algorithm: Algorithm
    base_model: str
    dataset_url: str = ""
    """The address of its dataset's manifest, for people: the dataset itself lies in the work directory."""
    seed: int = 0
    log_interval: Positive = 10
    distribution: DistributionPlan = DistributionPlan()
    optimization: OptimizationPlan = OptimizationPlan()
    preference: PreferencePlan = PreferencePlan()
    reward_model: RewardModelPlan = RewardModelPlan()
    online: OnlinePlan = OnlinePlan()
    worlds: WorldDefinitions = WorldDefinitions()
    """In which its tasks can be played, beside crafting; no request says this."""
    evaluation: EvaluationPlan = EvaluationPlan()
    checkpoints: CheckpointPlan = CheckpointPlan()
    lora: LoraPlan | None = None
    memory: MemoryEstimate | None = None
    notes: tuple[str, ...] = ()
    """What is otherwise than the request asked for, and why; people read it."""

    @property
    def global_batch(self) -> int:
        """Sequences (or episodes) per step of the optimiser; no retry changes it."""
        return self.distribution.processes * self.optimization.micro_batch * self.optimization.accumulation

    @property
    def is_online(self) -> bool:
        """Whether the policy makes its own data while it trains."""
        return self.algorithm in ONLINE_ALGORITHMS
