"""Training jobs small enough to be run in a second: a model with random weights, a dataset, a work directory."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, set_seed

from rl_pipeline.curation.files import WrittenFile
from rl_pipeline.curation.manifest import Manifest
from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.dataset import manifest_of
from rl_pipeline.training.program.models import load_tokenizer
from rl_pipeline.training.program.reporting import Reporter
from rl_pipeline.training.program.session import Session
from rl_pipeline.training.program.stopping import StopRequest
from rl_pipeline.training.small_model.tokenizer import train_tokenizer
from rl_pipeline.training.work_directory import WorkDirectory

# Two threads of a tiny model wait for each other most of the time.
torch.set_num_threads(1)

Messages = list[dict[str, Any]]
WIDE = 384
"""The width of a model of which ZeRO-3 shares out the matrices: those of a narrow one stay whole everywhere."""
THINGS = ("logs", "planks", "a sword", "a pickaxe")


def tiny_tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer([f"make {thing}: craft {thing} now, and wait" for thing in THINGS] * 4, vocabulary=320)


def write_tiny_model(directory: Path, width: int = 32) -> None:
    tokenizer = tiny_tokenizer()
    set_seed(7)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def said(role: str, content: str, *, trained: bool | None = None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "trained": role == "assistant" if trained is None else trained, **more}


def demonstration(seed: int) -> Messages:
    draw = random.Random(seed)
    messages = [said("system", "You make things.")]
    for _ in range(draw.randint(1, 4)):
        thing = draw.choice(THINGS)
        messages += [said("user", f"make {thing}"), said("assistant", f"craft {thing} now")]
    return messages


def pair(seed: int) -> tuple[Messages, Messages, Messages]:
    thing = random.Random(seed).choice(THINGS)
    prompt = [said("system", "You make things."), said("user", f"make {thing}")]
    chosen = [said("assistant", f"craft {thing} now"), said("tool", "crafted"), said("assistant", "done")]
    rejected = [said("assistant", "wait"), said("tool", "nothing happened"), said("assistant", "wait")]
    return prompt, chosen, rejected


def write_dataset(directory: Path, rows: int = 48, broken: Mapping[str, str] | None = None) -> None:
    """`broken` has texts to be stored in place of the messages of some trajectories."""
    directory.mkdir(parents=True, exist_ok=True)
    conversations = [
        {
            "trajectory_id": f"trajectory-{row}",
            "split": _split(row),
            "role": "demonstration",
            "messages": (broken or {}).get(f"trajectory-{row}", json.dumps(demonstration(row))),
        }
        for row in range(rows)
    ]
    pairs = []
    for row in range(rows):
        prompt, chosen, rejected = (json.dumps(part) for part in pair(row))
        ids = {"chosen_id": f"better-{row}", "rejected_id": f"worse-{row}"}
        pairs.append({"split": _split(row), **ids, "prompt": prompt, "chosen": chosen, "rejected": rejected})
    pl.DataFrame(conversations).write_parquet(directory / "conversations.parquet")
    pl.DataFrame(pairs).write_parquet(directory / "pairs.parquet")
    content = {"files": [], "rows": rows, "broken": sorted(broken or {})}
    manifest = Manifest("dataset-1", "job-1", 1, "2026-01-01T00:00:00Z", content, {"trajectories": rows})
    (directory / "manifest.json").write_bytes(manifest.encoded())


def write_prompts(directory: Path) -> None:
    """Tasks of a world; one is held out, which the second process then has nothing of."""
    world = CraftingWorld()
    opening = json.dumps([said("user", "make planks")])
    rows = [
        {
            "split": "train" if number else "holdout",
            "task": task.id,
            "messages": opening,
            "environment": world.name,
            "environment_task": json.dumps(dict(task.setup)),
        }
        for number, task in enumerate(world.tasks(7, seed=1))
    ]
    pl.DataFrame(rows).write_parquet(directory / "prompts.parquet")
    listed = WrittenFile(name="prompts.parquet", rows=len(rows), size=0, sha256="").listed()
    manifest = Manifest("dataset-1", "job-1", 1, "2026-01-01T00:00:00Z", {"files": [listed]}, {})
    (directory / "manifest.json").write_bytes(manifest.encoded())


def plan_of(algorithm: str = "sft", attempt: int = 1, **parts: Any) -> TrainingPlan:
    """A plan of few steps in one plain process, unless its parts say otherwise."""
    parts = {
        "distribution": {"deepspeed": False},
        "optimization": {"learning_rate": 1e-3, "micro_batch": 4, "max_steps": 10},
        "log_interval": 1,
    } | parts
    names = {"job_id": "job-1", "attempt": attempt, "algorithm": algorithm, "base_model": "tiny"}
    return TrainingPlan.model_validate_json(json.dumps({**names, **parts}))


def lay_out(root: Path, model: Path, plan: TrainingPlan, broken: Mapping[str, str] | None = None) -> WorkDirectory:
    """The work directory of an attempt, ready for the program."""
    work = WorkDirectory(root, plan.attempt)
    work.attempt_directory.mkdir(parents=True)
    work.plan_file.write_text(plan.model_dump_json())
    if not work.base.exists():
        work.base.symlink_to(model, target_is_directory=True)
    if not work.dataset.exists():
        write_dataset(work.dataset, broken=broken)
        if plan.is_online:
            write_prompts(work.dataset)
    return work


def session_of(work: WorkDirectory, plan: TrainingPlan) -> Session:
    """What the program knows of the attempt, in this process."""
    return Session(
        plan=plan,
        work=work,
        rank=0,
        world_size=1,
        device=torch.device("cpu"),
        base=work.base,
        dataset_hash=manifest_of(work.dataset).hash,
        tokenizer=load_tokenizer(work.base),
        reporter=Reporter(None),
        stop=StopRequest(),
    )


def losses(work: WorkDirectory) -> dict[int, float]:
    """The loss by step, as the attempt reported it."""
    return {line["step"]: line["loss"] for line in progress(work) if "loss" in line}


def progress(work: WorkDirectory) -> Sequence[dict[str, Any]]:
    """The lines that are whole: the last one may be half written."""
    file = work.progress_file
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def result(work: WorkDirectory) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(work.result_file.read_text())
    return content


def _split(row: int) -> str:
    return "holdout" if row % 6 == 0 else "train"
