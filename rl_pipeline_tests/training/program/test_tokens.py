"""Which tokens are learnt: what the agent itself wrote in this conversation, and nothing else."""

import json
from pathlib import Path

import polars as pl
import pytest
import trl
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from rl_pipeline.training.program.dataset import UnreadableRows, parse_messages, read_demonstrations
from rl_pipeline.training.program.models import load_tokenizer
from rl_pipeline.training.program.templates import NoConversation
from rl_pipeline.training.program.tokens import ChatTokens, Rendered
from rl_pipeline_tests.training.tiny_jobs import Messages, said, tiny_tokenizer, write_dataset, write_tiny_model

CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
QWEN = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()

EPISODE = [
    said("system", "Craft what is asked."),
    said("user", "make planks"),
    said("assistant", "I look around", trained=False),  # said in an earlier conversation, and copied
    said("tool", "You see logs."),
    said("assistant", "craft planks"),
    said("tool", "You have planks."),
    said("assistant", "done"),
]


def with_template(template: str, ending: str) -> PreTrainedTokenizerBase:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "eos_token": ending})
    tokenizer.chat_template = template
    return tokenizer


TOKENIZERS = {
    "of the small model": tiny_tokenizer(),
    "of Qwen 2.5": with_template(QWEN, "<|im_end|>"),
    "of ChatML": with_template(CHATML, "<|im_end|>"),
}


def learnt(tokenizer: PreTrainedTokenizerBase, rendered: Rendered) -> str:
    return tokenizer.decode([token for token in rendered.labels if token != -100])


@pytest.mark.parametrize("template", TOKENIZERS)
def test_the_loss_covers_what_the_agent_wrote_with_the_end_of_its_turn_and_nothing_else(template: str) -> None:
    tokenizer = TOKENIZERS[template]
    end = tokenizer.eos_token
    rendered = ChatTokens(tokenizer).render(EPISODE)
    assert learnt(tokenizer, rendered) == f"craft planks{end}done{end}"
    assert "You see logs." in tokenizer.decode(rendered.input_ids), "what was observed is read, though not learnt"


messages_of_any_text = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.text(st.characters(codec="utf-8")), st.booleans()),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("template", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(drawn=messages_of_any_text)
def test_any_text_is_learnt_exactly_where_it_is_flagged(template: str, drawn: list[tuple[str, str, bool]]) -> None:
    tokenizer = TOKENIZERS[template]
    messages = [said(role, text, trained=flag and role == "assistant") for role, text, flag in drawn]
    rendered = ChatTokens(tokenizer).render(messages)
    wanted = "".join(message["content"] + tokenizer.eos_token for message in messages if message["trained"])
    assert learnt(tokenizer, rendered) == wanted


def test_the_tokens_are_those_that_the_model_reads_when_it_is_used() -> None:
    for tokenizer in TOKENIZERS.values():
        used = tokenizer.apply_chat_template(EPISODE, tokenize=True, return_dict=False)
        read = ChatTokens(tokenizer).render(EPISODE).input_ids
        assert read == used[: len(read)]
        assert not tokenizer.decode(used[len(read) :]).strip()


def test_a_tokenizer_is_loaded_with_its_own_rules_and_delivered_with_them(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    loaded = load_tokenizer(tmp_path)
    decomposed = "e\u0301 1234"  # the rules of the model's family would compose the one and split the other
    assert loaded.decode(loaded(decomposed)["input_ids"]) == decomposed
    loaded.save_pretrained(tmp_path / "delivered")
    assert load_tokenizer(tmp_path / "delivered")(decomposed)["input_ids"] == tiny_tokenizer()(decomposed)["input_ids"]


def test_calls_of_tools_are_learnt_and_their_arguments_are_not_quoted_twice() -> None:
    tokenizer = TOKENIZERS["of the small model"]
    call = {"type": "function", "function": {"name": "craft", "arguments": '{"thing": "planks"}'}}
    stored = [said("user", "make planks"), said("assistant", "", tool_calls=[call])]
    rendered = ChatTokens(tokenizer).render(parse_messages(json.dumps(stored)))
    assert '{"name": "craft", "arguments": {"thing": "planks"}}' in learnt(tokenizer, rendered)


def test_a_model_without_a_chat_template_is_refused_with_advice() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(NoConversation, match="choose a model"):
        ChatTokens(tokenizer)


def test_a_conversation_that_nobody_answered_teaches_nothing() -> None:
    for tokenizer in TOKENIZERS.values():
        rendered = ChatTokens(tokenizer).render([said("user", "hello")])
        assert not rendered.teaches
        assert "hello" in tokenizer.decode(rendered.input_ids)


def long_conversation(turns: int) -> Messages:
    spoken = [[said("user", f"make {turn} planks"), said("assistant", f"craft {turn} planks")] for turn in range(turns)]
    return [said("system", "Craft."), *(message for turn in spoken for message in turn)]


def test_a_long_conversation_keeps_its_instructions_and_the_last_turns_that_fit() -> None:
    tokenizer = TOKENIZERS["of the small model"]
    tokens = ChatTokens(tokenizer)
    limit = len(tokens.render(long_conversation(40)).input_ids) // 3
    rendered = tokens.last_turns(long_conversation(40), limit)
    assert rendered is not None
    text = tokenizer.decode(rendered.input_ids)
    assert len(rendered.input_ids) <= limit
    assert text.startswith("<|system|>Craft.<|end|><|user|>")
    assert text.endswith("craft 39 planks<|end|>")
    longer = tokens.last_turns(long_conversation(40), limit + 40)
    assert longer is not None
    assert len(longer.input_ids) > len(rendered.input_ids)
    assert tokens.last_turns(long_conversation(40), 5) is None


def test_both_sides_of_a_pair_keep_their_opening_and_their_first_turns() -> None:
    tokenizer = TOKENIZERS["of the small model"]
    tokens = ChatTokens(tokenizer)
    opening, *rest = [long_conversation(20)[:2], *long_conversation(20)[2:]]
    whole = tokens.first_turns(opening, rest, 10_000)
    cut = tokens.first_turns(opening, rest, 60)
    assert whole is not None
    assert cut is not None
    assert whole.input_ids[: len(cut.input_ids)] == cut.input_ids
    assert learnt(tokenizer, cut).startswith("craft 0 planks<|end|>craft 1 planks")


BROKEN = {
    "trajectory-1": "no JSON",
    "trajectory-2": "[]",
    "trajectory-3": '[{"role": "stranger", "content": "hello"}]',
    "trajectory-4": '[{"role": "user", "content": 3}]',
    "trajectory-5": '[{"role": "assistant", "content": "", "tool_calls": "none"}]',
}


def test_all_rows_that_cannot_be_read_are_named_at_once_without_what_they_say(tmp_path: Path) -> None:
    write_dataset(tmp_path, broken=BROKEN)
    with pytest.raises(UnreadableRows) as refused:
        read_demonstrations(tmp_path, "train")
    assert refused.value.trajectory_ids == tuple(BROKEN)
    assert "stranger" not in str(refused.value)


def test_only_demonstrations_of_the_split_are_imitated(tmp_path: Path) -> None:
    write_dataset(tmp_path, rows=12)
    file = tmp_path / "conversations.parquet"
    scored = pl.col("trajectory_id") == "trajectory-2"
    role = pl.when(scored).then(pl.lit("scored")).otherwise("role").alias("role")
    pl.read_parquet(file).with_columns(role).write_parquet(file)
    found = [conversation.trajectory_id for conversation in read_demonstrations(tmp_path, "train")]
    assert found == [f"trajectory-{row}" for row in range(12) if row not in (0, 2, 6)]
