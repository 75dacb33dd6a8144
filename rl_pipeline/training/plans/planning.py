"""From a request to the plan of its training on this machine.

What the request says explicitly counts most, then the defaults of its source, then the preset of the model, then the
defaults of the contract. What cannot be had here is changed, and the plan's notes say so.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import floor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rl_pipeline.contracts.training_request import Algorithm, Evaluation, TrainingRequest
from rl_pipeline.errors import PipelineError
from rl_pipeline.training.plans.machine import Gpu, Machine
from rl_pipeline.training.plans.plan import (
    ONLINE_ALGORITHMS,
    MemoryEstimate,
    OnlinePlan,
    OptimizationPlan,
    PreferencePlan,
    TrainingPlan,
)
from rl_pipeline.training.plans.presets import Preset, Sections, overlaid, preset_of, source_preset
from rl_pipeline.training.site import TrainingSite

_MOST_CPU_PROCESSES = 2
# Nobody computes so many sequences at once; to share a batch among them is tried from here down.
_MOST_AT_ONCE = 100_000
_ONE_PROCESS = {"processes": 1, "nodes": 1, "hostfile": None}
_SLOTS = re.compile(r"^(\S+)\s+slots=(\d+)")
# What a request may set beyond the contract's own fields, by the section of the plan that it goes to.
_OPEN_HYPERPARAMETERS = {
    **dict.fromkeys(OptimizationPlan.model_fields.keys() - {"accumulation"}, "optimization"),
    **dict.fromkeys(PreferencePlan.model_fields, "preference"),
    **dict.fromkeys(OnlinePlan.model_fields.keys() - {"rollouts", "environment"}, "online"),
}
_OPEN_COMPUTE = {"zero_stage", "offload_optimizer", "offload_parameters", "gradient_checkpointing", "threads"}
# What else is read from the open sections of a request: by this module, and of the filter by `curation/policy.py`.
_OPEN_FILTER = {"literal_filter", "pair_margin", "normalised_reward", "source_share", "user_share"}
_OPEN_EVALUATION = {"episodes"}
_UNKNOWN = "The {what} {name!r} is not known here and changes nothing."


class UnplannableRequest(PipelineError):
    """A request whose values make no plan, or a hostfile that names no nodes."""


@dataclass(frozen=True)
class DatasetFacts:
    """What a plan has to know of its dataset."""

    train: int
    holdout: int
    environment: str | None = None
    """The world in which its tasks can be played, if there is one."""
    manifest_url: str = ""


@dataclass
class _Draft:
    """A plan in the making: sections as a preset has them, and what had to be changed."""

    sections: Sections
    notes: list[str] = field(default_factory=list)

    def part(self, name: str) -> dict[str, Any]:
        return self.sections.setdefault(name, {})


def plan_of(
    request: TrainingRequest,
    *,
    algorithm: Algorithm,
    base_model: str,
    preset: Preset,
    machine: Machine,
    site: TrainingSite,
    dataset: DatasetFacts,
    attempt: int = 1,
) -> TrainingPlan:
    """The plan of a job's training here. Raises `UnplannableRequest`, `UnknownSource`."""
    draft = _draft(request, algorithm, preset)
    _distribute(draft, request, machine, site)
    _choose_rollouts(draft, algorithm, dataset)
    _split_batch(draft, algorithm, dataset)
    _say_what_is_not_followed(draft, request, machine)
    log_interval = draft.sections.pop("reporting", {}).get("log_interval", 10)
    lora = draft.sections.pop("lora", None)
    content = {
        **draft.sections,
        "job_id": request.training_job_id,
        "attempt": attempt,
        "algorithm": algorithm,
        "base_model": base_model,
        "dataset_url": dataset.manifest_url,
        "seed": site.seed,
        "log_interval": log_interval,
        "lora": lora if lora and lora.get("rank") else None,
        "worlds": site.worlds.model_dump(mode="json"),
        "notes": draft.notes,
    }
    try:
        return TrainingPlan.model_validate_json(json.dumps(content))
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        field_name = ".".join(str(part) for part in first["loc"])
        raise UnplannableRequest(f"{field_name}: {first['msg']}. Change the request, and send it again.") from None


def check_plannable(request: TrainingRequest, algorithm: Algorithm) -> None:
    """Raise `UnplannableRequest` for values of which no machine makes a plan, before anybody waits for it."""
    plan_of(
        request,
        algorithm=algorithm,
        base_model="any",
        preset=preset_of("any"),
        # Where values are followed: without a compiler, say, nothing is offloaded, whatever the request says.
        machine=Machine(cores=1, memory_gb=1.0, gpus=(Gpu(0, "any", 1.0, 9.0),)),
        site=TrainingSite(work=Path("work"), models=Path("models")),
        dataset=DatasetFacts(train=1, holdout=1, environment="any"),
    )


def with_memory(plan: TrainingPlan, estimate: MemoryEstimate, machine: Machine) -> TrainingPlan:
    """The plan with the estimate of its memory, and a note where this machine has less."""
    notes = list(plan.notes)
    smallest = min((gpu.memory_gb for gpu in machine.gpus), default=None)
    if plan.distribution.device == "cuda" and smallest is not None and estimate.device_gb > smallest:
        notes.append(
            f"The states of the model take {estimate.device_gb:.0f} GB on each GPU, which has {smallest:.0f} GB:"
            " expect it to run out of memory, or ask for more GPUs, adapters or offloading."
        )
    if estimate.playing_gb:
        notes.append(
            f"Of the memory of each GPU {estimate.playing_gb:.0f} GB are for all weights at once while the policy"
            " plays: the hyperparameter gather_for_generation = false does without them, and is slower."
        )
    if estimate.host_gb > machine.memory_gb:
        notes.append(
            f"The states of the model take {estimate.host_gb:.0f} GB of the machine's memory, which is"
            f" {machine.memory_gb:.0f} GB: expect it to run out."
        )
    return plan.model_copy(update={"memory": estimate, "notes": tuple(notes)})


def split_batch(batch: int, processes: int, most_at_once: int) -> tuple[int, int]:
    """Micro-batch and accumulation of each process for a global batch of `batch`, or the nearest that can be shared."""
    share = max(1, floor(batch / processes + 0.5))
    micro = next(size for size in range(min(share, most_at_once), 0, -1) if share % size == 0)
    return micro, share // micro


def read_hostfile(path: Path) -> dict[str, int]:
    """The nodes and how many processes each has, as DeepSpeed reads them. Raises `UnplannableRequest`."""
    lines = path.read_text().splitlines() if path.is_file() else []
    nodes = {found.group(1): int(found.group(2)) for line in lines if (found := _SLOTS.match(line.strip()))}
    if not nodes:
        raise UnplannableRequest(f"The hostfile {path} names no nodes: write lines such as 'worker-1 slots=8'.")
    return nodes


def _draft(request: TrainingRequest, algorithm: Algorithm, preset: Preset) -> _Draft:
    """The layers one over the other."""
    config = request.training_config
    said = _in_sections(request, explicit=True)
    if source := (config.model_extra or {}).get("preset"):
        said = overlaid(source_preset(str(source)).sections, said)
    sections = overlaid(_in_sections(request, explicit=False), preset.sections_for(algorithm))
    if "epochs" in said["optimization"]:
        # The preset's limit would cut off what was asked for.
        sections["optimization"].pop("max_steps", None)
    draft = _Draft(overlaid(sections, said))
    _open_fields(draft, config.hyperparameters, config.compute)
    return draft


def _in_sections(request: TrainingRequest, *, explicit: bool) -> Sections:
    """The request's own fields in the plan's sections: those alone that it sets, or the values of all."""
    config = request.training_config
    hyper = config.hyperparameters.model_dump(exclude_unset=explicit)
    compute = config.compute.model_dump(exclude_unset=explicit)
    keeping = config.checkpointing.model_dump(exclude_unset=explicit)
    evaluation = request.evaluation.model_dump(exclude_unset=explicit)
    return {
        "optimization": _chosen(hyper, "learning_rate", "epochs", "batch_size"),
        "online": _chosen(hyper, "clip_epsilon", "gamma", "gae_lambda"),
        "distribution": _chosen(compute, precision="mixed_precision"),
        "checkpoints": _chosen(keeping, "save_interval", "max_checkpoints"),
        "evaluation": _chosen(evaluation, "enabled", *_OPEN_EVALUATION),
    }


def _chosen(values: Mapping[str, Any], *same: str, **renamed: str) -> dict[str, Any]:
    names = {**{name: name for name in same}, **renamed}
    return {name: values[given] for name, given in names.items() if given in values}


def _open_fields(draft: _Draft, hyperparameters: BaseModel, compute: BaseModel) -> None:
    for name, value in (hyperparameters.model_extra or {}).items():
        if name == "lora_rank":
            draft.part("lora")["rank"] = value
        elif name in _OPEN_HYPERPARAMETERS:
            draft.part(_OPEN_HYPERPARAMETERS[name])[name] = value
        else:
            draft.notes.append(_UNKNOWN.format(what="hyperparameter", name=name[:40]))
    for name, value in (compute.model_extra or {}).items():
        if name in _OPEN_COMPUTE:
            draft.part("distribution")[name] = value
        else:
            draft.notes.append(_UNKNOWN.format(what="field of compute", name=name[:40]))


def _distribute(draft: _Draft, request: TrainingRequest, machine: Machine, site: TrainingSite) -> None:
    """On how many processes of what kind, in which format."""
    compute, part = request.training_config.compute, draft.part("distribution")
    asked = compute.gpu_count if "gpu_count" in compute.model_fields_set else None
    nodes = read_hostfile(site.hostfile) if site.hostfile and compute.distributed else {}
    part["device"] = "cuda" if (machine.gpus or nodes) and asked != 0 else "cpu"
    part["memory_limit_gb"] = site.memory_limit_gb
    if nodes:
        per_node = min(nodes.values())
        part |= {"nodes": len(nodes), "processes": per_node * len(nodes), "hostfile": str(site.hostfile)}
        if per_node < max(nodes.values()):
            draft.notes.append(f"Each node runs {per_node} processes: the smallest has no more slots.")
        if asked is not None and asked != part["processes"]:
            draft.notes.append(
                f"It trains in {part['processes']} processes, those of the hostfile, in place of {asked}."
            )
    elif part["device"] == "cuda":
        part["processes"] = _gpu_processes(draft, asked, machine, site)
    else:
        part["processes"] = site.processes or min(_MOST_CPU_PROCESSES, machine.cores)
        if asked:
            draft.notes.append(f"There is no GPU here: it trains in {part['processes']} processes on CPUs.")
    if not compute.distributed:
        if asked is not None and asked > 1:
            draft.notes.append(f"It trains in one process, not on {asked} GPUs: the request wants it not distributed.")
        if site.hostfile:
            draft.notes.append(
                "It trains here, not on the nodes of the hostfile: the request wants it not distributed."
            )
        part |= _ONE_PROCESS
    _choose_format(draft, request, machine)
    _do_without_compiler(draft, machine)
    part.setdefault("threads", max(1, machine.cores // (part["processes"] // part.get("nodes", 1))))


def _gpu_processes(draft: _Draft, asked: int | None, machine: Machine, site: TrainingSite) -> int:
    available = min(len(machine.gpus), site.processes or len(machine.gpus))
    if asked is not None and asked > available:
        draft.notes.append(f"It trains on {available} GPUs: there are no {asked} to be had here.")
    return min(asked or available, available)


def _choose_format(draft: _Draft, request: TrainingRequest, machine: Machine) -> None:
    part, compute = draft.part("distribution"), request.training_config.compute
    wanted = part["precision"]
    if part["device"] == "cpu":
        part["precision"] = "fp32"
        reason = "16-bit numbers are slower on a CPU, bf16 by an order of magnitude"
    elif wanted == "bf16" and machine.gpus and not all(gpu.computes_bf16 for gpu in machine.gpus):
        part["precision"] = "fp16"
        reason = "these GPUs do not compute in bf16"
    if part["precision"] != wanted and "mixed_precision" in compute.model_fields_set:
        draft.notes.append(f"It trains in {part['precision']} in place of {wanted}: {reason}.")


def _do_without_compiler(draft: _Draft, machine: Machine) -> None:
    part = draft.part("distribution")
    part["can_compile"] = machine.has_compiler
    if machine.has_compiler:
        return
    if part["device"] == "cpu":
        part |= {"deepspeed": False, "offload_optimizer": False, "offload_parameters": False, **_ONE_PROCESS}
        draft.notes.append("There is no C++ compiler here: it trains in one process and without DeepSpeed.")
    elif part.get("offload_optimizer"):
        part |= {"offload_optimizer": False, "offload_parameters": False}
        draft.notes.append("There is no C++ compiler here: nothing is offloaded, which takes a compiled operator.")


def _choose_rollouts(draft: _Draft, algorithm: Algorithm, dataset: DatasetFacts) -> None:
    rollouts = "environment" if dataset.environment else "reward_model"
    draft.part("online").update({"rollouts": rollouts, "environment": dataset.environment})
    if algorithm in ONLINE_ALGORITHMS and not dataset.environment:
        draft.notes.append("The tasks of the dataset cannot be played: a reward model learnt from it scores instead.")


def _say_what_is_not_followed(draft: _Draft, request: TrainingRequest, machine: Machine) -> None:
    config, evaluation = request.training_config, request.evaluation
    wanted = config.compute.gpu_type
    if "gpu_type" in config.compute.model_fields_set and wanted.lower() != "any":
        names = {gpu.name for gpu in machine.gpus} if draft.part("distribution")["device"] == "cuda" else {"CPUs"}
        if not all(wanted.lower() in name.lower() for name in names) or not names:
            found = ", ".join(sorted(names)) or "whatever the nodes have"
            draft.notes.append(f"It trains on {found}, not on the GPU {wanted[:40]!r} that was asked for.")
    if config.checkpointing.storage_path is not None:
        draft.notes.append("storage_path is not followed: checkpoints go to MODEL_STORAGE_PATH, where others look.")
    usual = Evaluation()
    if evaluation.metrics != usual.metrics:
        draft.notes.append("evaluation.metrics is not followed: all that the algorithm can measure is measured.")
    if evaluation.benchmark_tasks != usual.benchmark_tasks:
        draft.notes.append("evaluation.benchmark_tasks is not followed: validation runs all the benchmarks there are.")
    open_sections: dict[str, tuple[BaseModel, set[str]]] = {
        "training_config": (config, {"preset"}),
        "dataset": (config.dataset, set()),
        "filter": (config.dataset.filter, _OPEN_FILTER),
        "checkpointing": (config.checkpointing, set()),
        "evaluation": (evaluation, _OPEN_EVALUATION),
    }
    for section, (content, known) in open_sections.items():
        for name in sorted((content.model_extra or {}).keys() - known):
            draft.notes.append(_UNKNOWN.format(what=f"field of {section}", name=name[:40]))


def _split_batch(draft: _Draft, algorithm: Algorithm, dataset: DatasetFacts) -> None:
    part, processes = draft.part("optimization"), draft.part("distribution")["processes"]
    batch, most_at_once = part.pop("batch_size"), part.get("micro_batch", OptimizationPlan().micro_batch)
    if not isinstance(most_at_once, int) or not 1 <= most_at_once <= _MOST_AT_ONCE:
        raise UnplannableRequest(
            f"hyperparameters.micro_batch must be a whole number from 1 to {_MOST_AT_ONCE:,}. Change the request, and"
            " send it again."
        )
    micro, accumulation = split_batch(batch, processes, most_at_once)
    part |= {"micro_batch": micro, "accumulation": accumulation}
    whole = processes * micro * accumulation
    if whole != batch:
        draft.notes.append(f"The batch is {whole} in place of {batch}, which {processes} processes cannot share.")
    if algorithm not in ONLINE_ALGORITHMS and dataset.train < whole:
        draft.notes.append(f"The dataset has {dataset.train} rows to train on, fewer than a batch of {whole}.")
