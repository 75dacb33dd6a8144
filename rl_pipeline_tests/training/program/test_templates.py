"""Whatever chat template a model brings: all that the agent wrote is read and learnt, and nothing else is learnt."""

import re
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers import PreTrainedTokenizerBase

from rl_pipeline.training.program.failing import failure_of
from rl_pipeline.training.program.templates import ChatTemplate, NoConversation
from rl_pipeline.training.program.tokens import ChatTokens, Rendered
from rl_pipeline.training.program.turn_tokens import TurnTokens
from rl_pipeline_tests.training.tiny_jobs import said, tiny_tokenizer

FOLDER = Path(trl.__file__).parent / "chat_templates"
CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# As Mistral 7B v0.1 and v0.2: user and assistant in turn, and nobody else.
ALTERNATING = """{{ bos_token }}{% for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) or message.role not in ('user', 'assistant') %}
{{- raise_exception('user and assistant must alternate') }}{% endif %}
{%- if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}
{%- else %}{{ message.content + eos_token }}{% endif %}{% endfor %}"""
# As Mistral 7B v0.3 and Nemo: calls and answers of tools have ids of nine characters, which no trajectory has.
WITH_IDS = """{{ bos_token }}{% for message in messages %}
{%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- elif message.tool_calls is defined %}{{ '[TOOL_CALLS][' }}{% for call in message.tool_calls %}
{%- if call.id is not defined or call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
{{- call.function | tojson }}{% endfor %}{{ ']' + eos_token }}
{%- elif message.role == 'assistant' %}{{ message.content + eos_token }}
{%- elif message.role == 'tool' %}
{%- if message.tool_call_id is not defined %}{{ raise_exception('ids have nine characters') }}{% endif %}
{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"""
# As Llama 2: a space before the token that ends an answer, and the system's words within the user's.
SPACED = """{% if messages[0].role == 'system' %}{% set system = '<<SYS>>' + messages[0].content + '<</SYS>>' %}
{%- set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{% for message in messages %}
{%- if message.role == 'user' %}{{ bos_token + '[INST] ' }}{{ system if loop.first }}{{ message.content + ' [/INST]' }}
{%- elif message.role == 'assistant' %}{{ ' ' + message.content + ' ' + eos_token }}{% endif %}{% endfor %}"""
UNINVITING = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor %}"""
FORGETFUL = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if loop.last %}{{ message.content }}{% else %}{{ message.content.split('</think>') | last }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ENDLESS = """{% for message in messages %}{{ message.role + ': ' + message.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""

OWN = {
    "chatml": (CHATML, "<|im_end|>"),
    "as mistral v0.1": (ALTERNATING, "</s>"),
    "as mistral v0.3": (WITH_IDS, "</s>"),
    "as llama 2": (SPACED, "</s>"),
    "without invitation": (UNINVITING, "<|im_end|>"),
    "that forgets thoughts": (FORGETFUL, "<|im_end|>"),
    "without ends of turns": (ENDLESS, "</s>"),
}
BAR = "\uff5c"  # fullwidth, as DeepSeek has it
END_OF_SENTENCE = f"<{BAR}end▁of▁sentence{BAR}>"
ENDS = {
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "deepseek": END_OF_SENTENCE,
    "gemma": "<eos>",
    "glm": "<|endoftext|>",
    "gptoss": "<|return|>",
    "idefics": "<end_of_utterance>",
    "llama": "<|eot_id|>",
    "llava": "</s>",
    "phi": "<|endoftext|>",
}
OPENING_THOUGHTS = ("deepseek", "nemotron", "qwen3_5_think", "qwen3_6", "qwen3_8")
# What the tokenizers of these models have as tokens of their own.
SPECIAL = re.compile(r"<[|\uff5c][^<>\s]+[|\uff5c]>|<(?:start|end)_of_(?:turn|utterance)>|<\|?turn\|?>|</?s>")
THEIRS = sorted(file.stem for file in FOLDER.glob("*.jinja") if not file.stem.endswith("_training"))
TEMPLATES = [*OWN, *THEIRS]

CALL = {"type": "function", "function": {"name": "shell", "arguments": {"cmd": "ls -la | grep <b>", "n": 3}}}
OTHER = {"type": "function", "function": {"name": "clock", "arguments": {}}}
WORDS = {
    "with copied context": [
        said("system", "SYSTEM"),
        said("user", "make planks"),
        said("assistant", "COPIED", trained=False),
        said("tool", "You see logs."),
        said("assistant", "craft planks"),
        said("user", "ok"),
        said("assistant", "DONE"),
    ],
    "with answers of tools": [
        said("user", "make planks"),
        said("assistant", "get wood"),
        said("tool", "OBSERVED 1"),
        said("tool", ""),
        said("user", "go on"),
        said("assistant", "DONE"),
    ],
    "with thoughts": [
        said("user", "make planks"),
        said("assistant", "<think>\nhm\n</think>\n\nget wood"),
        said("user", "OBSERVED 1"),
        said("assistant", "<think>\nagain\n</think>\n\nDONE"),
    ],
    "with space around what is said": [
        said("user", " make planks\n"),
        said("assistant", "\n\n  get wood \n"),
        said("tool", "OBSERVED 1"),
        said("assistant", " "),
        said("tool", "OBSERVED 2"),
        said("assistant", "DONE\n"),
    ],
    "with two in a row": [
        said("system", "SYSTEM 1"),
        said("system", "SYSTEM 2"),
        said("user", "make planks"),
        said("user", "please"),
        said("assistant", "get wood"),
        said("assistant", ""),
        said("system", "SYSTEM 3"),
        said("assistant", "DONE"),
    ],
}
CALLS = [
    said("user", "list files"),
    said("assistant", "I look.", tool_calls=[CALL]),
    said("tool", "OBSERVED 1"),
    said("assistant", "", tool_calls=[CALL]),
    said("tool", "OBSERVED 2"),
    said("assistant", "Both.", tool_calls=[CALL, OTHER]),
    said("tool", "OBSERVED 3"),
    said("assistant", "DONE"),
]


@cache
def tokenizer_with(name: str) -> PreTrainedTokenizerBase:
    template, end = OWN.get(name) or (
        (FOLDER / f"{name}.jinja").read_text(),
        next((end for family, end in ENDS.items() if name.startswith(family)), "<|im_end|>"),
    )
    tokenizer = tiny_tokenizer()
    special = sorted({*SPECIAL.findall(template), end, "<s>"})
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.add_special_tokens({"eos_token": end, "bos_token": "<s>"})
    tokenizer.chat_template = template
    return tokenizer


def text_of(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    return str(tokenizer.decode(token_ids))


def turns_of(tokenizer: PreTrainedTokenizerBase, rendered: Rendered) -> list[str]:
    """What was learnt, answer by answer, each without the one token that ends it and is no word."""
    turns: list[str] = []
    ends, words = special_ids(tokenizer), list[int]()
    for token in (token for token in rendered.labels if token != -100):
        if token in ends:
            turns.append(text_of(tokenizer, words))
            words = []
        else:
            words.append(token)
    assert not words
    return turns


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    return {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}


def own_words(name: str, text: str) -> str:
    """What the agent has to write itself of what it says: some templates open its thoughts for it."""
    return text.removeprefix("<think>\n" if name.startswith(OPENING_THOUGHTS) else "")


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_character_of_the_agent_is_learnt_with_the_end_of_its_turn_and_nothing_else(name: str, kind: str) -> None:
    tokenizer, messages = tokenizer_with(name), WORDS[kind]
    rendered = ChatTokens(tokenizer).render(messages)
    written = [message["content"] for message in messages if message["trained"]]
    written = [own_words(name, text) for text in written]
    assert turns_of(tokenizer, rendered) == written
    read = text_of(tokenizer, rendered.input_ids)
    assert all(message["content"].strip() in read for message in messages), "all that was said is read"
    assert "<think><think>" not in read.replace("\n", "")


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_of_tools_are_learnt_with_name_and_arguments(name: str) -> None:
    tokenizer = tokenizer_with(name)
    rendered = ChatTokens(tokenizer).render(CALLS)
    learnt = text_of(tokenizer, [token for token in rendered.labels if token != -100])
    read = text_of(tokenizer, rendered.input_ids)
    said_first, said_next, said_last = map(learnt.index, ("I look.", "Both.", "DONE"))
    assert said_first < said_next < said_last
    for turn in (learnt[:said_next], learnt[said_next:said_last]):
        assert turn.count("shell") == turn.count("ls -la | grep <b>") == (2 if turn.startswith("I look") else 1)
        assert all(word in turn for word in ("cmd", "n", "3"))
    assert "clock" in learnt[said_next:said_last]
    assert all(f"OBSERVED {n}" in read and f"OBSERVED {n}" not in learnt for n in (1, 2, 3))


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_learnt_from_is_what_is_read_when_the_same_is_played(name: str, kind: str) -> None:
    tokenizer, messages = tokenizer_with(name), WORDS[kind]
    learnt = ChatTokens(tokenizer).render(messages).input_ids
    tokens, heard, shown = TurnTokens(tokenizer, None), list[int](), list[dict[str, Any]]()
    for message in messages:
        if message["role"] != "assistant":
            shown.append(message)
            continue
        heard += tokens.following(shown, heard[-1]) if heard else tokens.opening(shown)
        heard += tokenizer(own_words(name, message["content"]), add_special_tokens=False)["input_ids"]
        heard.append(learnt[len(heard)])
        assert heard[-1] in tokens.stop_ids, "there the model stops too"
        shown = []
    assert heard == learnt


READ = {
    # No calls: they are JSON in what the agent says.
    "llama3": (
        "<s>{user}list files{end}{assistant}"
        '[I look.\n{{"name": "shell", "arguments": {{"cmd": "ls -la | grep <b>", "n": 3}}}}{end}]'
        "{tool}a b c{end}{assistant}[DONE{end}]",
        {role: f"<|start_header_id|>{role}<|end_header_id|>\n\n" for role in ("user", "assistant", "tool")}
        | {"end": "<|eot_id|>"},
    ),
    # A notation of its own for calls.
    "qwen2_5": (
        "{system}You are Qwen, created by Alibaba Cloud. You are a helpful assistant.{end}\n{user}list files{end}\n"
        '{assistant}[I look.\n<tool_call>\n{{"name": "shell", "arguments": {{"cmd": "ls -la | grep <b>", "n": 3}}}}\n'
        "</tool_call>{end}]\n{user}<tool_response>\na b c\n</tool_response>{end}\n{assistant}[DONE{end}]",
        {role: f"<|im_start|>{role}\n" for role in ("system", "user", "assistant")} | {"end": "<|im_end|>"},
    ),
    # Nobody but the user and the model, who alternate.
    "gemma3": (
        "<s>{user}list files{end}\n{assistant}"
        '[I look.\n{{"name": "shell", "arguments": {{"cmd": "ls -la | grep <b>", "n": 3}}}}{end}]'
        "\n{user}a b c{end}\n{assistant}[DONE{end}]",
        {
            "user": "<start_of_turn>user\n",
            "assistant": "<start_of_turn>model\n",
            "end": "<end_of_turn>",
        },
    ),
    # It drops what is said beside a call.
    "llama3_1": (
        "<s>{system}Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n{end}{user}list files{end}"
        '{assistant}[I look.\n{{"name": "shell", "parameters": {{"cmd": "ls -la | grep <b>", "n": 3}}}}{end}]'
        '{ipython}"a b c"{end}{assistant}[DONE{end}]',
        {role: f"<|start_header_id|>{role}<|end_header_id|>\n\n" for role in ("system", "user", "assistant", "ipython")}
        | {"end": "<|eot_id|>"},
    ),
    # It wants arguments that are written already.
    "deepseekv3": (
        "<s><{bar}User{bar}>list files<{bar}Assistant{bar}><think>\n"
        "[I look.<{bar}tool▁calls▁begin{bar}><{bar}tool▁call▁begin{bar}>function<{bar}tool▁sep{bar}>shell\n```json\n"
        '{{"cmd": "ls -la | grep <b>", "n": 3}}\n```<{bar}tool▁call▁end{bar}><{bar}tool▁calls▁end{bar}>{end}]'
        "<{bar}tool▁outputs▁begin{bar}><{bar}tool▁output▁begin{bar}>a b c"
        "<{bar}tool▁output▁end{bar}><{bar}tool▁outputs▁end{bar}>[DONE{end}]",
        {"end": END_OF_SENTENCE, "bar": BAR},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_conversation_with_a_call_is_read_as(name: str) -> None:
    """What stands in brackets is learnt."""
    tokenizer = tokenizer_with(name)
    messages = [
        said("user", "list files"),
        said("assistant", "I look.", tool_calls=[CALL]),
        said("tool", "a b c"),
        said("assistant", "DONE"),
    ]
    rendered = ChatTokens(tokenizer).render(messages)
    text = "".join(
        f"[{text_of(tokenizer, ids)}]" if trained else text_of(tokenizer, ids)
        for trained, group in groupby(zip(rendered.trained, rendered.input_ids, strict=True), lambda pair: pair[0])
        if (ids := [token for _, token in group])
    )
    expected, parts = READ[name]
    assert text == expected.format(**parts)


def test_what_a_template_shows_by_itself_is_not_noted() -> None:
    assert ChatTemplate(tokenizer_with("qwen2_5")).notes == []
    assert ChatTemplate(tiny_tokenizer()).notes == []


def test_what_stands_in_for_a_template_is_noted() -> None:
    notes = "\n".join(ChatTemplate(tokenizer_with("as mistral v0.1")).notes)
    assert all(words in notes for words in ("calls of tools", "answers of tools", "instructions", "alternate"))
    assert "opens <think> before an answer" in ChatTemplate(tokenizer_with("deepseek_r1_distill")).notes[-1]


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{{ raise_exception('no chat') }}", r"refuses a plain conversation \(no chat\)"),
        ("{{ messages[0].content }}", "hides words"),
        ("{{ messages | length }}", "hides words"),
    ],
)
def test_a_template_that_cannot_hold_a_conversation_is_the_models_fault(template: str, fault: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(NoConversation, match=f"{fault}.*choose a model that can chat, or mend its template") as refused:
        ChatTemplate(tokenizer)
    assert failure_of(refused.value, rank=0, step=0).code == "UNKNOWN"


def test_a_served_conversation_shows_what_the_agent_called_before() -> None:
    tokens = TurnTokens(tokenizer := tokenizer_with("llama3"), None)
    assert '"name": "shell"' in text_of(tokenizer, tokens.opening([*CALLS[:4], CALLS[4]]))
