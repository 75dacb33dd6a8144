"""MODEL_CARD.md: what a person must know before they use a checkpoint. Pure text from what the training already knows.

The front matter is the one that model hubs read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rl_pipeline.training.plans.plan import TrainingPlan

MODEL_CARD = "MODEL_CARD.md"
_MEASURES = {
    "success_sampled": "held-out tasks solved (sampled)",
    "success_greedy": "held-out tasks solved (greedy)",
    "preference_accuracy": "held-out pairs ranked rightly",
    "holdout_loss": "loss on the holdout (lower is better)",
    "reward_mean": "mean reward",
}


@dataclass(frozen=True, slots=True)
class CardDataset:
    """What the card says of the data."""

    dataset_id: str
    manifest_hash: str
    url: str
    trajectories: int
    holdout: int
    domains: Mapping[str, int] = field(default_factory=dict)
    """Trajectories by domain."""
    selection: Mapping[str, object] = field(default_factory=dict)
    """How they were chosen: window, filters, caps, and what was left out for which reason."""
    rewards: Mapping[str, object] = field(default_factory=dict)
    """How they were scored: configuration, weights, mean and spread."""


def model_card(
    plan: TrainingPlan, dataset: CardDataset, result: Mapping[str, object], lineage: Mapping[str, str | None]
) -> str:
    """The card as Markdown. `result` is the program's `result.json`; `lineage` names what led here, by what it is.

    What is None or missing is left out. The same facts give the same text.
    """
    sections = [
        _front_matter(plan),
        f"# {_line(plan.job_id)}",
        f"{_line(plan.base_model)}, trained with {plan.algorithm} on {dataset.trajectories} trajectories of LLM agents."
        f" {_verdict(result)}",
        *_section("Results", _results(result)),
        *_section("Data", _table(("", ""), _data(dataset)), _domains(dataset)),
        *_section("Rewards", _table(("", ""), dataset.rewards.items())),
        *_section("Method", _table(("", ""), _method(plan, result)), _notes(plan)),
        *_section("Lineage", _table(("", ""), lineage.items())),
        *_section("Limits", _LIMITS),
    ]
    return "\n\n".join(sections) + "\n"


_LIMITS = """The model learnt from what agents did in this system, redacted before it was stored. Its measures come from
held-out tasks of the same kind and say little about others; validation and the canary decide whether it is served.
Verify it before use: `manifest.json` has the sha256 of every file, `manifest.sig.json` the signature over it."""


def _front_matter(plan: TrainingPlan) -> str:
    tags = ["reinforcement-learning", "agents", plan.algorithm, *(["lora"] if plan.lora else [])]
    facts = {"base_model": plan.base_model, "library_name": "transformers", "pipeline_tag": "text-generation"}
    # JSON is YAML, and quotes whatever is in a name.
    lines = [f"{name}: {json.dumps(value)}" for name, value in facts.items()]
    return "\n".join(["---", *lines, f"tags: {json.dumps(tags)}", "---"])


def _verdict(result: Mapping[str, object]) -> str:
    measure, improvement = result.get("measure"), result.get("improvement")
    if not isinstance(measure, str) or not isinstance(improvement, int | float):
        return "It was not measured against its base model."
    direction = "better" if improvement > 0 else "no better" if improvement == 0 else "worse"
    return (
        f"By its own measure ({measure.replace('_', ' ')}) it is {direction} than its base model: {improvement:+.4g}."
    )


def _results(result: Mapping[str, object]) -> str:
    base, final = (_mapping(result.get(name)) for name in ("base", "final"))
    rows = [
        (_MEASURES.get(name, name.replace("_", " ")), base.get(name), final.get(name), _change(base, final, name))
        for name in [*_MEASURES, *sorted({*base, *final} - set(_MEASURES))]
        if name in base or name in final
    ]
    return _table(("measure", "base model", "this model", "change"), rows)


def _change(base: Mapping[str, object], final: Mapping[str, object], name: str) -> str | None:
    before, after = base.get(name), final.get(name)
    if isinstance(before, int | float) and isinstance(after, int | float):
        return f"{after - before:+.4g}"
    return None


def _data(dataset: CardDataset) -> Iterable[tuple[str, object]]:
    yield "dataset", dataset.dataset_id
    yield "manifest hash", dataset.manifest_hash
    yield "address", dataset.url
    yield "trajectories", dataset.trajectories
    yield "of these held out", dataset.holdout
    yield from dataset.selection.items()


def _domains(dataset: CardDataset) -> str:
    shares = sorted(dataset.domains.items(), key=lambda each: (-each[1], each[0]))
    total = sum(dataset.domains.values()) or 1
    return _table(
        ("domain", "trajectories", "share"), [(name, count, f"{count / total:.0%}") for name, count in shares]
    )


def _method(plan: TrainingPlan, result: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    optimization, distribution = plan.optimization, plan.distribution
    yield "algorithm", plan.algorithm
    yield "weights", f"LoRA of rank {plan.lora.rank}" if plan.lora else "all"
    yield "learning rate", f"{optimization.learning_rate:g}, {optimization.schedule}"
    yield "global batch", plan.global_batch
    yield "steps", result.get("steps")
    yield "epochs", result.get("epochs")
    yield "tokens", result.get("tokens")
    yield "seed", plan.seed
    yield "precision", distribution.precision
    yield "processes", result.get("processes", distribution.processes)
    yield "ZeRO stage", result.get("zero_stage", distribution.zero_stage if distribution.deepspeed else None)
    yield "seconds", result.get("seconds")
    yield "peak memory (GB)", result.get("peak_memory_gb")


def _notes(plan: TrainingPlan) -> str:
    if not plan.notes:
        return ""
    return "Otherwise than the request asked for:\n\n" + "\n".join(f"- {_line(note)}" for note in plan.notes)


def _section(title: str, *parts: str) -> list[str]:
    present = [part for part in parts if part]
    return [f"## {title}", *present] if present else []


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of the rows that say something beside their name; nothing when none does."""
    filled = [[_cell(value) for value in row] for row in rows if any(value is not None for value in row[1:])]
    if not filled:
        return ""
    lines = [header, ["---"] * len(header), *filled]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{_line(str(name))}: {_cell(each)}" for name, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_cell(each) for each in value)
    return _line(str(value))


def _line(text: str) -> str:
    """Text that stays one line and cannot become markup: ids and names come from outside."""
    flat = " ".join(text.split())
    return flat.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'").replace("[", "\\[")


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
