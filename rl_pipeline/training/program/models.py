"""Models in and out: how the base model is loaded for a plan, what a trainer is told, how the result is delivered."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from rl_pipeline.errors import PipelineError
from rl_pipeline.training.checkpoints import storage
from rl_pipeline.training.plans.deepspeed_config import deepspeed_config
from rl_pipeline.training.plans.plan import LoraPlan, TrainingPlan
from rl_pipeline.training.program.saving import Resumable
from rl_pipeline.training.program.session import Session

ADAPTER = "adapter"


class BaseModelMissing(PipelineError):
    """The directory of the base model holds no model."""


_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def training_arguments(session: Session) -> dict[str, Any]:
    """What any `TrainingArguments` is made from. With ZeRO-3 they must exist before a model is loaded."""
    plan = session.plan
    steps, distribution = plan.optimization, plan.distribution
    return {
        "output_dir": str(session.work.checkpoints),
        "seed": plan.seed,
        "learning_rate": steps.learning_rate,
        "lr_scheduler_type": steps.schedule,
        "warmup_steps": steps.warmup_share,
        "weight_decay": steps.weight_decay,
        "max_grad_norm": steps.max_gradient_norm,
        "per_device_train_batch_size": steps.micro_batch,
        "per_device_eval_batch_size": steps.micro_batch,
        "gradient_accumulation_steps": steps.accumulation,
        "num_train_epochs": steps.epochs,
        "max_steps": steps.max_steps or -1,
        "use_cpu": distribution.device == "cpu",
        "bf16": distribution.precision == "bf16",
        "fp16": distribution.precision == "fp16",
        "gradient_checkpointing": distribution.gradient_checkpointing,
        "deepspeed": deepspeed_config(plan) if distribution.deepspeed else None,
        "logging_steps": plan.log_interval,
        "logging_first_step": True,
        # A loss that is no number must be seen, not averaged away.
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": plan.checkpoints.save_interval,
        "dataloader_pin_memory": distribution.device == "cuda",
        "disable_tqdm": True,
        "report_to": [],
        # Some trainers look at columns that the model knows nothing of.
        "remove_unused_columns": False,
    }


def load_tokenizer(base: Path) -> PreTrainedTokenizerBase:
    """The base model's own, with a token to pad with."""
    # For a known family of models AutoTokenizer puts that family's rules in place of those that the file has.
    as_it_is = (base / "tokenizer.json").exists()
    tokenizer = (PreTrainedTokenizerFast if as_it_is else AutoTokenizer).from_pretrained(base)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_policy(session: Session) -> PreTrainedModel | PeftModel:
    """The base model, ready to be trained: all of its weights, or adapters to them."""
    return _with_adapters(session.plan, load_base(session), "CAUSAL_LM")


def load_judge(session: Session) -> PreTrainedModel | PeftModel:
    """The base model with a score in place of words, ready to be trained."""
    return _with_adapters(session.plan, load_classifier(session, session.base), "SEQ_CLS")


def _with_adapters(plan: TrainingPlan, model: PreTrainedModel, task: str) -> PreTrainedModel | PeftModel:
    if plan.lora is None:
        return model
    if plan.distribution.gradient_checkpointing:
        model.enable_input_require_grads()
    # ZeRO-3 shares parameters out in one precision; peft would raise its own to fp32.
    sharded = plan.distribution.deepspeed and plan.distribution.zero_stage == 3
    return get_peft_model(model, lora_config(plan.lora, task), autocast_adapter_dtype=not sharded)


def load_base(session: Session) -> PreTrainedModel:
    """The base model in the precision that it is trained in."""
    return AutoModelForCausalLM.from_pretrained(session.base, dtype=dtype_of(session.plan))


def load_classifier(session: Session, directory: Path) -> PreTrainedModel:
    """The model in `directory` with one score in place of words: what it lacks of that begins at random."""
    model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
        directory, num_labels=1, dtype=dtype_of(session.plan)
    )
    return model


def dtype_of(plan: TrainingPlan) -> torch.dtype:
    """The precision of the weights. Without DeepSpeed mixed precision keeps them in fp32, unless they are frozen."""
    if plan.distribution.deepspeed or plan.lora is not None:
        return _DTYPES[plan.distribution.precision]
    return torch.float32


def lora_config(lora: LoraPlan, task: str) -> LoraConfig:
    """The adapters as peft knows them."""
    modules = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    return LoraConfig(
        task_type=task,
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # any number will do
        lora_dropout=lora.dropout,
        target_modules=modules,
    )


def deliver(
    session: Session,
    trainer: Resumable,
    target: Path,
    meta: dict[str, Any],
    load_again: Callable[[Session], PreTrainedModel] = load_base,
) -> None:
    """Write the trained model to `target`, whole or not at all, as anybody can load it. All processes call this.

    Of adapters, both are delivered: themselves in `adapter`, and the base model, loaded again, with them merged in.
    """
    sharded = session.plan.distribution.deepspeed and session.plan.distribution.zero_stage == 3
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped) if sharded else None
    if session.writes:
        described = {"job_id": session.plan.job_id, "created": datetime.now(UTC), **meta}
        moving = session.reporter.while_bytes_move(storage.staging_of(target))
        with moving, storage.saving(target, described) as staging:
            model = trainer.accelerator.unwrap_model(trainer.model)
            if isinstance(model, PeftModel):
                model.save_pretrained(str(staging / ADAPTER), state_dict=weights)
                _forget_machine(staging / ADAPTER)
                # The one that was trained may have been taken apart by DeepSpeed.
                with _whole_models():
                    whole = PeftModel.from_pretrained(load_again(session), staging / ADAPTER)
                model, weights = whole.merge_and_unload(), None
            model.save_pretrained(staging, state_dict=weights)
            session.tokenizer.save_pretrained(staging)
    trainer.accelerator.wait_for_everyone()


@contextmanager
def _whole_models() -> Iterator[None]:
    """ZeRO-3 shares out every model that is loaded; in here it does not."""
    from transformers.integrations import deepspeed

    shared = deepspeed._hf_deepspeed_config_weak_ref  # noqa: SLF001  there is a way to unset it, and none to set it again
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = shared  # noqa: SLF001


def _forget_machine(adapter: Path) -> None:
    """peft notes where the base model lay on this machine, which is nobody's business and true nowhere else."""
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": ""}, indent=1))
    (adapter / "README.md").unlink(missing_ok=True)
