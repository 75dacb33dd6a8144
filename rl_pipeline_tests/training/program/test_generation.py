"""Sampling in many conversations at once: the tokens, their probabilities, and any chat template."""

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from rl_pipeline.environments.crafting import COMMANDS, CraftingWorld
from rl_pipeline.environments.playing import Conversation
from rl_pipeline.training.program.generation import NOT_WRITTEN, Rollout, SamplingPolicy, Transcript, play_with_model
from rl_pipeline.training.program.templates import NoConversation
from rl_pipeline.training.program.turn_tokens import TurnTokens
from rl_pipeline.training.small_model.tokenizer import train_tokenizer

WORLD = CraftingWorld()
CHATML = """\
{%- for message in messages %}{{ '<|system|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|system|>assistant\\n' }}{% endif %}"""
WITHOUT_TOOLS = "{%- if 'tool' in messages | map(attribute='role') %}{{ raise_exception('no') }}{% endif %}" + CHATML
DEAF_TO_TOOLS = CHATML.replace(
    "{%- for message in messages %}", "{%- for message in messages if message.role != 'tool' %}"
)
FORGETS_THOUGHTS = """\
{%- for message in messages %}{{ '<|' + message.role + '|>' }}
{%- if loop.last %}{{ message.content }}{% else %}{{ message.content.split(' ')[-1] }}{% endif %}{{ '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
ARCHITECTURES = {
    "qwen2": {**SIZES, "num_key_value_heads": 1},
    "llama": {**SIZES, "num_key_value_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 1024},
    "mistral": {**SIZES, "num_key_value_heads": 1, "sliding_window": 24},
}


def tokenizer_with(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = train_tokenizer([WORLD.instructions, *COMMANDS, "Have wood, coal", "Missing plank"], 340)
    tokenizer.chat_template = template or tokenizer.chat_template
    return tokenizer


def random_model(architecture: str, tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> PreTrainedModel:
    """A model that knows nothing; its weights are large, so that its probabilities differ."""
    configuration: PretrainedConfig = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        **ARCHITECTURES[architecture],
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(configuration).eval()


def rollouts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, **options: object) -> list[Rollout]:
    given = {"generator": torch.Generator().manual_seed(3), "max_new_tokens": 6, **options}
    return play_with_model(WORLD, WORLD.tasks(24, seed=1), model, tokenizer, **given)  # type: ignore[arg-type]


def logprobs_by_reading(model: PreTrainedModel, transcript: Transcript, temperature: float) -> torch.Tensor:
    """Log-probabilities of all tokens but the first, in one pass over the one conversation."""
    token_ids = torch.tensor([transcript.token_ids])
    with torch.no_grad():
        logits = model(token_ids).logits[0, :-1] / temperature
    return logits.log_softmax(-1).gather(1, token_ids[0, 1:, None]).squeeze(1)


def talk(policy: SamplingPolicy, conversations: int) -> None:
    """Conversations of one to eight turns, in which observations of very different length are told."""
    running = [Conversation(number, [{"role": "user", "content": "wood " * number}]) for number in range(conversations)]
    for turn in range(8):
        running = [one for one in running if one.number % 8 >= turn]
        for one, answer in zip(running, policy.act(running), strict=True):
            one.messages.append({"role": "assistant", "content": answer})
            one.messages.append({"role": "tool", "content": "coal " * (40 if (one.number + turn) % 4 == 0 else turn)})


def check_probabilities(model: PreTrainedModel, transcripts: Sequence[Transcript], temperature: float) -> None:
    for transcript in transcripts:
        written = torch.tensor(transcript.turns[1:]) != NOT_WRITTEN
        torch.testing.assert_close(
            torch.tensor(transcript.logprobs[1:])[written],
            logprobs_by_reading(model, transcript, temperature)[written],
            atol=1e-4,
            rtol=1e-4,
        )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_many_turns_side_by_side_sampled_has_the_probability_that_one_reading_gives(architecture: str) -> None:
    tokenizer = tokenizer_with(None)
    model = random_model(architecture, tokenizer)
    randomness = torch.Generator().manual_seed(2)
    policy = SamplingPolicy(model, tokenizer, generator=randomness, temperature=0.7, max_new_tokens=6)
    talk(policy, conversations=12)
    assert {max(transcript.turns) for transcript in policy.transcripts.values()} == set(range(8))
    check_probabilities(model, list(policy.transcripts.values()), temperature=0.7)


@pytest.mark.parametrize("template", [None, CHATML, WITHOUT_TOOLS, DEAF_TO_TOOLS, FORGETS_THOUGHTS])
def test_with_any_template_the_transcript_is_what_was_said_and_shown(template: str | None) -> None:
    tokenizer = tokenizer_with(template)
    model = random_model("qwen2", tokenizer)
    for episode, transcript in rollouts(model, tokenizer):
        text = tokenizer.decode(transcript.token_ids)
        shown = [message["content"] for message in episode.messages[:-1] if message["role"] != "assistant"]
        assert all(observation in text for observation in shown[1:])
        for turn, action in enumerate(message["content"] for message in episode.messages[1::2]):
            written = [token for token, of in zip(transcript.token_ids, transcript.turns, strict=True) if of == turn]
            assert tokenizer.decode(written, skip_special_tokens=True) == action


def test_a_conversation_as_played_is_the_conversation_as_rendered() -> None:
    """Where the model ends its turn and what it writes is tokenised as it was sampled, nothing is added or lost."""
    tokenizer = tokenizer_with(CHATML)
    tokens = TurnTokens(tokenizer, None)
    messages = [
        {"role": "user", "content": "Goal: axe. Have nothing"},
        {"role": "assistant", "content": "get wood"},
        {"role": "tool", "content": "Have wood"},
    ]
    answer = tokenizer("get wood<|end|>", add_special_tokens=False)["input_ids"]
    heard = tokens.opening(messages[:1]) + answer + tokens.following(messages[2:], answer[-1])
    assert tokenizer.decode(heard) == tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    cut_off = tokens.opening(messages[:1]) + answer[:-1] + tokens.following(messages[2:], answer[-2])
    assert cut_off == heard, "an answer that reached its limit is ended for the model"


def test_an_answer_ends_with_its_end_token_or_at_the_limit() -> None:
    tokenizer = tokenizer_with(None)
    stops = set(TurnTokens(tokenizer, None).stop_ids)
    assert stops == {tokenizer.eos_token_id}
    lengths = set()
    for _, transcript in rollouts(random_model("qwen2", tokenizer), tokenizer, max_new_tokens=5):
        for turn in range(max(transcript.turns) + 1):
            written = [token for token, of in zip(transcript.token_ids, transcript.turns, strict=True) if of == turn]
            assert not stops & set(written[:-1])
            assert written[-1] in stops or len(written) == 5
            lengths.add(len(written))
    assert {1, 5} <= lengths


def test_the_same_generator_samples_the_same_and_another_does_not() -> None:
    tokenizer = tokenizer_with(None)
    model = random_model("qwen2", tokenizer)
    once, again, other = (
        rollouts(model, tokenizer, generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)
    )
    assert once == again != other


def test_temperature_zero_takes_the_likeliest_token_and_needs_no_randomness() -> None:
    tokenizer = tokenizer_with(None)
    model = random_model("qwen2", tokenizer)
    for _, transcript in rollouts(model, tokenizer, generator=None, temperature=0.0)[:6]:
        with torch.no_grad():
            likeliest = model(torch.tensor([transcript.token_ids])).logits[0].argmax(-1).tolist()
        for place, turn in enumerate(transcript.turns):
            assert turn == NOT_WRITTEN or transcript.token_ids[place] == likeliest[place - 1]


def test_what_is_new_is_read_once() -> None:
    """With plain attention a later turn reads what is new; a model with another memory reads all of it again."""
    read: dict[str, list[int]] = {}
    for architecture in ("qwen2", "mistral"):
        tokenizer = tokenizer_with(None)
        model = random_model(architecture, tokenizer)
        widths = read.setdefault(architecture, [])
        handle = model.register_forward_pre_hook(_note_width(widths), with_kwargs=True)
        policy = SamplingPolicy(model, tokenizer, generator=torch.Generator().manual_seed(1), max_new_tokens=1)
        messages = [{"role": "user", "content": "wood " * 40}]
        for _ in range(3):
            answer = policy.act([Conversation(0, messages)])[0]  # type: ignore[arg-type]
            messages += [{"role": "assistant", "content": answer}, {"role": "tool", "content": "Have wood"}]
        handle.remove()
    assert all(width < 10 for width in read["qwen2"][1:])
    assert sorted(read["mistral"]) == read["mistral"]
    assert all(width > 40 for width in read["qwen2"][:1] + read["mistral"])


def _note_width(widths: list[int]) -> Callable[..., None]:
    def note(_model: object, _arguments: object, options: dict[str, torch.Tensor]) -> None:
        widths.append(options["input_ids"].shape[1])

    return note


def test_sampling_leaves_the_model_as_it_was() -> None:
    tokenizer = tokenizer_with(None)
    model = random_model("qwen2", tokenizer).train()
    rollouts(model, tokenizer)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_transcript_tells_trajectories_how_each_turn_was_drawn() -> None:
    tokenizer = tokenizer_with(None)
    model = random_model("qwen2", tokenizer)
    for episode, transcript in rollouts(model, tokenizer):
        samplings = transcript.samplings("v1")
        assert len(samplings) == len(episode.outcomes)
        for sampling in samplings:
            prompt, completion = sampling.prompt_token_ids or [], sampling.completion_token_ids or []
            assert transcript.token_ids[: len(prompt) + len(completion)] == prompt + completion
            assert len(sampling.logprobs or []) == len(completion) > 0


def test_a_tokenizer_without_a_template_is_refused_with_advice() -> None:
    tokenizer = tokenizer_with(None)
    tokenizer.chat_template = None
    with pytest.raises(NoConversation, match="choose a model"):
        TurnTokens(tokenizer, None)
