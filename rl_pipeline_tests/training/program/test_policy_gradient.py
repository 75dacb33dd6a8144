"""The trainer of the online algorithms: what it learns from, that it learns, and that it goes on where it stopped."""

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn import functional
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    TrainingArguments,
    set_seed,
)

from rl_pipeline.contracts.training_request import Algorithm
from rl_pipeline.curation.files import WrittenFile
from rl_pipeline.curation.manifest import MANIFEST, Manifest
from rl_pipeline.environments.crafting import COMMANDS, CraftingWorld
from rl_pipeline.environments.worlds import WORLDS, WorldDefinitions, Worlds
from rl_pipeline.training.plans.plan import EvaluationPlan, OnlinePlan, OptimizationPlan, TrainingPlan
from rl_pipeline.training.program.dataset import DatasetUnreadable
from rl_pipeline.training.program.episodes import (
    PlayedEpisode,
    batch_of,
    first_turns,
    generator_of,
    groups_of,
    prompts_of_iteration,
)
from rl_pipeline.training.program.evaluation import measure_reward, measure_success
from rl_pipeline.training.program.likelihoods import read
from rl_pipeline.training.program.policy_gradient import NothingToPlay, PolicyGradientTrainer
from rl_pipeline.training.program.prompts import Prompt, read_prompts
from rl_pipeline.training.program.rollouts import EnvironmentRollouts, play_in_worlds
from rl_pipeline.training.program.surrogate import policy_objective, value_objective
from rl_pipeline.training.small_model.tokenizer import train_tokenizer

CPU = torch.device("cpu")
WORLD = CraftingWorld()
LORA = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([WORLD.instructions, *COMMANDS], 300)


def configuration(words: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )


def untrained_policy(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    set_seed(0)
    return Qwen2ForCausalLM(configuration(len(tokenizer)))


def prompts(count: int) -> list[Prompt]:
    messages = [{"role": "user", "content": WORLD.instructions}]
    return [Prompt(task.id, messages, WORLD.name, task.setup) for task in WORLD.tasks(count, seed=1)]


def plan_of(algorithm: Algorithm, *, micro_batch: int = 4, accumulation: int = 2, **online: float) -> TrainingPlan:
    settings = {"updates_per_iteration": 2, "max_turns": 3, "max_new_tokens": 4, **online}
    return TrainingPlan(
        job_id="job",
        algorithm=algorithm,
        base_model="base",
        online=OnlinePlan.model_validate(settings),
        optimization=OptimizationPlan(micro_batch=micro_batch, accumulation=accumulation),
        evaluation=EvaluationPlan(episodes=6),
    )


def trainer_of(
    plan: TrainingPlan,
    tokenizer: PreTrainedTokenizerFast,
    directory: Path,
    *,
    steps: int = 4,
    learning_rate: float = 1e-2,
    model: PreTrainedModel | PeftModel | None = None,
    reward_model: PreTrainedModel | None = None,
    tasks: Sequence[Prompt] | None = None,
) -> PolicyGradientTrainer:
    arguments = TrainingArguments(
        output_dir=str(directory),
        per_device_train_batch_size=plan.optimization.micro_batch,
        gradient_accumulation_steps=plan.optimization.accumulation,
        max_steps=steps,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    return PolicyGradientTrainer(
        plan=plan,
        prompts=prompts(5) if tasks is None else tasks,
        reference=untrained_policy(tokenizer) if model is None or not isinstance(model, PeftModel) else None,
        reward_model=reward_model,
        model=model or untrained_policy(tokenizer),
        args=arguments,
        processing_class=tokenizer,
    )


class EvenWords:
    """Two turns of three words each; the reward of a turn is how many of its words have even numbers."""

    def can_play(self, _: Prompt) -> bool:
        return True

    def kind_of(self, prompt: Prompt) -> str:
        return prompt.task

    def play(
        self, policy: PreTrainedModel, prompts: Sequence[Prompt], generator: torch.Generator
    ) -> list[PlayedEpisode]:
        words, turns, rewards = torch.ones(len(prompts), 2, dtype=torch.long), [-1, -1], []
        for turn in range(2):
            for _ in range(3):
                chances = policy(input_ids=words).logits[:, -1].softmax(-1)
                words = torch.cat([words, torch.multinomial(chances, 1, generator=generator)], 1)
            rewards.append((words[:, -3:] % 2 == 0).sum(1).tolist())
            words = functional.pad(words, (0, 1), value=2)
            turns += [turn, turn, turn, -1]
        return [
            PlayedEpisode(row.tolist(), turns, of_turns, sum(of_turns) > 3)
            for row, of_turns in zip(words, zip(*rewards, strict=True), strict=True)
        ]


def test_an_episode_becomes_what_was_read_what_was_written_and_where_turns_begin() -> None:
    episodes = [PlayedEpisode([5, 6, 7, 8, 9], [-1, 0, 0, -1, 1], [0.0, 1.0]), PlayedEpisode([5, 6], [-1, 0], [0.0])]
    batch = batch_of(episodes, padding=0, most_turns=3, device=CPU)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9], [5, 6, 0, 0, 0]]
    assert batch["attention_mask"].sum(1).tolist() == [5, 2]
    assert batch["written"].tolist() == [[True, True, False, True], [True, False, False, False]]
    assert batch["turns"].tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    assert batch["starts"].tolist() == [[0, 3, 0], [0, 0, 0]], "the token before a turn's first"


@pytest.mark.parametrize(
    ("most", "kept", "rewards"), [(9, 8, [1, 2, 4]), (7, 5, [1, 6]), (5, 5, [1, 6]), (4, 3, [7]), (1, 3, [7])]
)
def test_an_episode_that_is_too_long_ends_with_its_last_turn_that_fits(
    most: int, kept: int, rewards: list[int]
) -> None:
    episode = PlayedEpisode(list(range(8)), [-1, 0, 0, -1, 1, -1, 2, 2], [1, 2, 4], progress=[2, 4, 8])
    cut = first_turns(episode, most)
    assert (list(cut.token_ids), list(cut.rewards)) == (list(range(kept)), rewards)
    assert list(cut.progress) == [2 * reward for reward in rewards]


def test_progress_that_the_world_tells_is_rewarded_as_the_plan_says(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    def advantages(shaping: float) -> torch.Tensor:
        trainer = trainer_of(plan_of("rloo", shaping=shaping), tokenizer, tmp_path, steps=1)
        episodes = [
            PlayedEpisode([5, 6, 7], [-1, 0, 1], [0.0, 0.0], progress=[0.1, -0.1 * number]) for number in range(8)
        ]
        batches = trainer._batches(episodes, CPU)
        trainer._judge(episodes, [0] * 8, batches)
        return torch.cat([batch["advantages"] for batch in batches])

    assert advantages(0.0).abs().max() == 0, "no episode was better than another"
    shaped = advantages(1.0)
    assert (shaped[:-1, 1] > shaped[1:, 1]).all()


def test_all_prompts_are_played_before_one_comes_again() -> None:
    played = [prompt for iteration in range(6) for prompt in prompts_of_iteration(9, 3, iteration, seed=4)]
    assert sorted(played[:9]) == sorted(played[9:]) == list(range(9))
    assert played[:9] != played[9:]


def test_what_does_not_fill_a_group_joins_the_last_one() -> None:
    assert groups_of(7, 3) == [0, 0, 0, 1, 1, 1, 1]
    assert groups_of(2, 4) == [0, 0]


def test_the_ratio_is_held_only_where_it_would_be_moved_further() -> None:
    tokens = {"logprobs": [0.5, 0.5, -0.5, -0.5, 0.0], "advantages": [1.0, -1.0, 1.0, -1.0, 1.0]}
    logprobs = torch.tensor([tokens["logprobs"]], requires_grad=True)
    objective = policy_objective(
        OnlinePlan(kl_coefficient=0.0),
        logprobs=logprobs,
        old_logprobs=torch.zeros(1, 5),
        reference_logprobs=None,
        advantages=torch.tensor([tokens["advantages"]]),
        written=torch.ones(1, 5, dtype=torch.bool),
    )
    objective.loss.backward()
    assert logprobs.grad is not None
    assert (logprobs.grad[0] != 0).tolist() == [False, True, True, False, True]
    assert objective.clipped.item() == pytest.approx(0.4)


def test_the_divergence_from_the_reference_is_k3_over_what_was_written_in_each_episode() -> None:
    objective = policy_objective(
        OnlinePlan(kl_coefficient=0.5),
        logprobs=torch.tensor([[-1.0, -1.0, -9.0], [-2.0, 0.0, 0.0]]),
        old_logprobs=torch.tensor([[-1.0, -1.0, -9.0], [-2.0, 0.0, 0.0]]),
        reference_logprobs=torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 0.0, 0.0]]),
        advantages=torch.zeros(2, 3),
        written=torch.tensor([[True, True, False], [True, False, False]]),
    )
    first, second = torch.tensor(-1.0), torch.tensor(1.0)
    k3 = ((first.exp() - first - 1) / 2 + (second.exp() - second - 1)) / 2
    assert objective.kl.item() == pytest.approx(k3.item())
    assert objective.loss.item() == pytest.approx(0.5 * k3.item())


def test_values_are_judged_only_where_there_was_a_turn() -> None:
    played = torch.tensor([[True, True], [True, False]])
    error = value_objective(torch.tensor([[1.0, 2.0], [0.0, 9.0]]), torch.tensor([[0.0, 0.0], [2.0, 0.0]]), played)
    assert error.item() == pytest.approx(0.5 * ((1 + 4) / 2 + 4) / 2)


def test_what_is_trained_on_is_what_was_sampled(tokenizer: PreTrainedTokenizerFast) -> None:
    """Read again in one pass, with other padding, each written token is as likely as when it was drawn."""
    plan = plan_of("rloo", temperature=0.7)
    policy = untrained_policy(tokenizer).eval()
    rollouts = play_in_worlds(plan, policy, tokenizer, prompts(6), generator_of(CPU, 1), worlds=WORLDS)
    episodes = [PlayedEpisode(of.token_ids, of.turns, episode.rewards) for episode, of in rollouts]
    batch = batch_of(episodes, padding=tokenizer.pad_token_id, most_turns=3, device=CPU)
    with torch.no_grad():
        reading = read(policy, batch, temperature=0.7)
    drawn = torch.nn.utils.rnn.pad_sequence([torch.tensor(of.logprobs) for _, of in rollouts], batch_first=True)
    assert batch["written"].sum() == sum(turn >= 0 for _, of in rollouts for turn in of.turns) > 0
    assert torch.allclose(reading.logprobs, drawn[:, 1:], atol=1e-4)
    assert (reading.entropies[batch["written"]] > 0).all()


def test_episodes_depend_on_nothing_but_seed_iteration_process_and_weights(tokenizer: PreTrainedTokenizerFast) -> None:
    rollouts = EnvironmentRollouts(plan_of("rloo"), tokenizer)
    policy = untrained_policy(tokenizer)

    def tokens(*parts: int) -> list[Sequence[int]]:
        return [episode.token_ids for episode in rollouts.play(policy, prompts(4), generator_of(CPU, *parts))]

    once = tokens(0, 3, 1)
    torch.rand(5)
    assert tokens(0, 3, 1) == once
    assert all(tokens(*other) != once for other in [(1, 3, 1), (0, 4, 1), (0, 3, 0)])


def test_the_worlds_of_the_plan_are_played_in(tokenizer: PreTrainedTokenizerFast) -> None:
    told = WorldDefinitions(reasoning_gym={"chain_sum": {"max_terms": 2}})
    world = Worlds(told).find("reasoning-gym:chain_sum")
    asked = [Prompt(task.id, [], world.name, task.setup) for task in world.tasks(4, seed=1)]
    plan = plan_of("rloo")
    assert not any(map(EnvironmentRollouts(plan, tokenizer).can_play, asked))
    rollouts = EnvironmentRollouts(plan.model_copy(update={"worlds": told}), tokenizer)
    assert all(map(rollouts.can_play, asked))
    episodes = rollouts.play(untrained_policy(tokenizer), asked, generator_of(CPU, 1))
    assert [len(episode.rewards) for episode in episodes] == [1] * 4


@pytest.mark.parametrize("algorithm", ["ppo", "rloo", "grpo", "reinforce"])
def test_every_algorithm_learns_what_is_rewarded(
    algorithm: Algorithm, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    plan = plan_of(algorithm, micro_batch=16)
    model = Qwen2ForCausalLM(configuration(16))
    reference = Qwen2ForCausalLM(configuration(16))
    reference.load_state_dict(model.state_dict())
    trainer = trainer_of(plan, tokenizer, tmp_path, steps=16, model=model)
    trainer.reference, trainer.rollouts = reference, EvenWords()
    trainer.train()
    rewards = [entry["reward_mean"] for entry in trainer.state.log_history if "reward_mean" in entry]
    assert rewards[0] < 4.0
    assert rewards[-1] > 5.0


@pytest.mark.parametrize(
    ("algorithm", "adapter", "floor"), [("ppo", False, 1.0), ("ppo", True, 1.0), ("rloo", True, 0.1)]
)
def test_an_interrupted_training_goes_on_as_if_it_had_not_been(
    algorithm: Algorithm, adapter: bool, floor: float, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    def trainer() -> PolicyGradientTrainer:
        model = get_peft_model(untrained_policy(tokenizer), LORA) if adapter else None
        made = trainer_of(plan_of(algorithm, curriculum_floor=floor), tokenizer, tmp_path, steps=6, model=model)
        made.rollouts = EvenWords()
        return made

    straight = trainer()
    straight.train()
    resumed = trainer()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    names = ("loss", "grad_norm", "policy_entropy", "kl_divergence")
    known = [one.curriculum.state if one.curriculum else None for one in (straight, resumed)]
    assert known[0] == known[1]
    for before, after in zip(straight.state.log_history[4:6], resumed.state.log_history[4:6], strict=True):
        assert {name: after[name] for name in names} == pytest.approx({name: before[name] for name in names}, abs=1e-6)
        assert before["kl_divergence"] > 0


def test_a_state_is_not_saved_in_the_middle_of_an_iteration(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    trainer = trainer_of(plan_of("rloo", updates_per_iteration=3), tokenizer, tmp_path)
    boundaries = []
    for trainer.state.global_step in range(7):
        boundaries.append(trainer.at_boundary())
    assert boundaries == [True, False, False, True, False, False, True]


def test_the_delivered_policy_has_no_value_head(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    trainer = trainer_of(plan_of("ppo"), tokenizer, tmp_path)
    assert "value_head.weight" in trainer.model.state_dict()
    trainer.remove_value_head()
    assert trainer.model.state_dict().keys() == untrained_policy(tokenizer).state_dict().keys()


def test_a_reward_model_scores_the_prompt_with_the_answer(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    set_seed(1)
    scoring = configuration(len(tokenizer))
    scoring.num_labels = 1
    reward_model = Qwen2ForSequenceClassification(scoring)
    trainer = trainer_of(plan_of("rloo"), tokenizer, tmp_path, reward_model=reward_model)
    played = trainer.rollouts.play(trainer.model.eval(), prompts(6), generator_of(CPU, 1))
    opening = tokenizer.apply_chat_template(prompts(1)[0].messages, add_generation_prompt=True)["input_ids"]
    for episode in played:
        score = reward_model(input_ids=torch.tensor([episode.token_ids])).logits.item()
        assert episode.token_ids[: len(opening)] == opening
        assert episode.rewards == pytest.approx([score], abs=1e-5)
    trainer.train()
    assert trainer.state.global_step == 4
    assert "success_rate" not in trainer.state.log_history[0]
    assert measure_reward(trainer, prompts(3), trainer.plan).keys() == {"reward_mean"}


def test_success_is_measured_on_tasks_that_can_be_played(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    plan = plan_of("rloo")
    trainer = trainer_of(plan, tokenizer, tmp_path)
    measured = measure_success(trainer, tokenizer, prompts(4), plan)
    assert measured.keys() == {"success_sampled", "success_greedy", "reward_mean"}
    assert measured == measure_success(trainer, tokenizer, prompts(4), plan)
    unplayable = [Prompt("task", []), Prompt("task", [], "elsewhere", {}), Prompt("task", [], "crafting", {"goal": 7})]
    assert measure_success(trainer, tokenizer, unplayable, plan) == {}


def list_files(directory: Path, *names: str) -> None:
    """Write a manifest that lists these files."""
    content = {"files": [WrittenFile(name, 1, 1, "").listed() for name in names]}
    (directory / MANIFEST).write_bytes(Manifest("job.r1", "job", 1, "", content, {}).encoded())


def test_prompts_are_read_as_the_dataset_has_them_and_are_missed_where_its_manifest_lists_them(tmp_path: Path) -> None:
    opening = [{"role": "user", "content": "Make a torch."}]
    rows = [
        ("a", "train", json.dumps(opening), "crafting", '{"goal": "torch", "have": []}'),
        ("b", "holdout", json.dumps(opening), None, None),
    ]
    names = ["task", "split", "messages", "environment", "environment_task"]
    with pytest.raises(DatasetUnreadable):
        read_prompts(tmp_path, "train")
    list_files(tmp_path, "conversations.parquet")
    assert read_prompts(tmp_path, "train") == []
    list_files(tmp_path, "conversations.parquet", "prompts.parquet")
    with pytest.raises(DatasetUnreadable, match=r"prompts\.parquet"):
        read_prompts(tmp_path, "train")
    pl.DataFrame(rows, schema=names, orient="row").write_parquet(tmp_path / "prompts.parquet")
    (train,), (holdout,) = read_prompts(tmp_path, "train"), read_prompts(tmp_path, "holdout")
    assert (train.task, train.environment, train.environment_task) == ("a", "crafting", {"goal": "torch", "have": []})
    assert train.messages[0]["content"] == "Make a torch."
    assert (holdout.task, holdout.environment) == ("b", None)
    (tmp_path / "prompts.parquet").write_bytes(b"PAR1")
    with pytest.raises(DatasetUnreadable):
        read_prompts(tmp_path, "train")


def test_prompts_that_nobody_can_play_are_an_error_that_says_so(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    with pytest.raises(NothingToPlay, match="none of the dataset's 1 prompts"):
        trainer_of(plan_of("rloo"), tokenizer, tmp_path, tasks=[Prompt("task", [])])
    with pytest.raises(NothingToPlay, match="batch size"):
        trainer_of(plan_of("rloo", micro_batch=1, accumulation=1), tokenizer, tmp_path)
