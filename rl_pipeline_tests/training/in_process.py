"""Our trainer of episodes in this process, without the program around it."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, TrainingArguments

from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.policy_gradient import PolicyGradientTrainer
from rl_pipeline.training.program.prompts import Prompt


def loaded(directory: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def trained_by_us(base: Path, plan: TrainingPlan, prompts: Sequence[Prompt], directory: Path) -> PreTrainedModel:
    steps = plan.optimization
    trainer = PolicyGradientTrainer(
        plan=plan,
        prompts=prompts,
        reference=loaded(base),
        reward_model=None,
        model=loaded(base),
        processing_class=AutoTokenizer.from_pretrained(base),
        args=TrainingArguments(
            output_dir=str(directory),
            seed=plan.seed,
            per_device_train_batch_size=steps.micro_batch,
            gradient_accumulation_steps=steps.accumulation,
            max_steps=steps.max_steps or -1,
            learning_rate=steps.learning_rate,
            lr_scheduler_type=steps.schedule,
            save_strategy="no",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        ),
    )
    trainer.train()
    return trainer.model
