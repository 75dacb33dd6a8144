"""What DeepSpeed is told about a plan, and what DeepSpeed says the plan takes in memory."""

from datetime import timedelta
from typing import Any, Literal

from rl_pipeline.training.plans.model_size import ModelSize
from rl_pipeline.training.plans.plan import DistributionPlan, MemoryEstimate, TrainingPlan

# Elements, not bytes. DeepSpeed sets aside buffers of these sizes: half a gigabyte suits a GPU, and would be most of
# what a small process on a CPU may take.
_BUCKETS = {"cpu": 5_000_000, "cuda": 200_000_000}
# While one process writes, hashes and measures what there is one of, the others wait for it: after ten minutes, by
# PyTorch's default, they would break off. Who hangs is found by the watch over the progress (`launching/watching.py`).
GROUP_TIMEOUT = timedelta(hours=12)


def deepspeed_config(plan: TrainingPlan) -> dict[str, Any]:
    """The configuration for `deepspeed.initialize` and for `TrainingArguments(deepspeed=…)`.

    All sizes are numbers, none is "auto": the trainer then refuses arguments that differ from the plan.
    """
    steps, distribution = plan.optimization, plan.distribution
    config: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": steps.micro_batch,
        "gradient_accumulation_steps": steps.accumulation,
        "gradient_clipping": steps.max_gradient_norm,
        "bf16": {"enabled": distribution.precision == "bf16"},
        "fp16": {"enabled": distribution.precision == "fp16", "initial_scale_power": 16},
        "zero_optimization": _zero(distribution),
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
    }
    if distribution.offload_optimizer:
        # Only DeepSpeed's own optimiser works on parameters that live in the host's memory at a useful speed.
        config["optimizer"] = {
            "type": "AdamW",
            "params": {
                "lr": steps.learning_rate,
                "betas": [0.9, 0.999],
                "eps": 1e-8,
                "weight_decay": steps.weight_decay,
            },
        }
    return config


def _zero(distribution: DistributionPlan) -> dict[str, Any]:
    on_gpu = distribution.device == "cuda"
    bucket = _BUCKETS[distribution.device]
    zero: dict[str, Any] = {
        "stage": distribution.zero_stage,
        "contiguous_gradients": True,
        "overlap_comm": on_gpu,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    if distribution.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": on_gpu}
    if distribution.zero_stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
        zero["stage3_prefetch_bucket_size"] = bucket // 4
        if distribution.offload_parameters:
            zero["offload_param"] = {"device": "cpu", "pin_memory": on_gpu}
    return zero


def memory_estimate(plan: TrainingPlan, size: ModelSize) -> MemoryEstimate:
    """What the states of the model take, by DeepSpeed's estimators for what is trained; weights that are only read
    (those under adapters, the copy that the policy is compared with, the reward model, and under ZeRO-3 all weights at
    once while the policy plays) come on top."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    distribution = plan.distribution
    per_node = distribution.processes // distribution.nodes
    trained = plan.lora.rank * size.adapter_parameters_per_rank if plan.lora else size.parameters
    if distribution.deepspeed and distribution.zero_stage == 3:
        host, device, _ = estimate_zero3_model_states_mem_needs(
            trained,
            size.largest_layer,
            per_node,
            distribution.nodes,
            cpu_offload=distribution.offload_optimizer,
            cpu_offload_params=distribution.offload_parameters,
        )
    else:
        # Below stage 2 the gradients are whole everywhere, and below stage 1 so is all else.
        sharing = (per_node, distribution.nodes) if distribution.deepspeed and distribution.zero_stage else (1, 1)
        host, device = estimate_zero2_model_states_mem_needs(
            trained, *sharing, cpu_offload=distribution.offload_optimizer
        )
        device += 2 * trained if distribution.deepspeed and distribution.zero_stage == 1 else 0
    read_only_on_host, read_only_on_device = _read_only(plan, size, per_node)
    playing = _gathered_to_play(plan, size)
    host, device = host + read_only_on_host + _gathered_to_deliver(plan, size), device + read_only_on_device + playing
    if distribution.device == "cpu":
        host += per_node * device
    gigabytes = {"device_gb": device, "playing_gb": playing, "host_gb": host}
    return MemoryEstimate(**{name: round(taken / 1e9, 3) for name, taken in gigabytes.items()})


def _read_only(plan: TrainingPlan, size: ModelSize, per_node: int) -> tuple[int, int]:
    """Bytes in the memory of a node and on each device. One copy serves as both where there are adapters."""
    distribution = plan.distribution
    copies = int(plan.algorithm != "sft" or plan.lora is not None)
    copies += int(plan.is_online and plan.online.rollouts == "reward_model")
    copy = copies * _bytes_of(plan, size)
    if not _is_sharded(plan):
        return 0, copy
    share = copy // distribution.processes
    return (per_node * share, 0) if distribution.offload_parameters else (0, share)


def _gathered_to_deliver(plan: TrainingPlan, size: ModelSize) -> int:
    """What the first node holds at the end: the weights of all processes, and the model that takes in adapters."""
    return (int(_is_sharded(plan)) + int(plan.lora is not None)) * _bytes_of(plan, size)


def _gathered_to_play(plan: TrainingPlan, size: ModelSize) -> int:
    """What each device holds beside its share while the policy plays, to train on or to be measured."""
    plays = plan.is_online or (plan.evaluation.enabled and plan.online.environment is not None)
    return _bytes_of(plan, size) if plays and _is_sharded(plan) and plan.online.gather_for_generation else 0


def _is_sharded(plan: TrainingPlan) -> bool:
    return plan.distribution.deepspeed and plan.distribution.zero_stage == 3


def _bytes_of(plan: TrainingPlan, size: ModelSize) -> int:
    return (4 if plan.distribution.precision == "fp32" else 2) * size.parameters


def join_processes(device: Literal["cpu", "cuda"]) -> None:
    """Join the other processes of the launch; to be called before anything else makes a process group.

    DeepSpeed would first compile an all-reduce of its own (70 CPU seconds, once), which inference alone uses and which
    leaves 69 MB of shared memory behind for each process of each run. It is declined.
    """
    import deepspeed
    from torch.distributed import distributed_c10d

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # ZeRO makes groups of its own, and cannot be told how patient these are.
    for default in ("default_pg_timeout", "default_pg_nccl_timeout"):
        setattr(distributed_c10d, default, GROUP_TIMEOUT)
    deepspeed.init_distributed("gloo" if device == "cpu" else "nccl", timeout=GROUP_TIMEOUT)
