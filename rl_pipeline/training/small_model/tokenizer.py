"""The tokenizer of the small model: byte-level BPE, so that every text has tokens, with a chat template of its own.

A message is its role's token, its text, and the token that ends it. Calls and the tools on offer are JSON within that.
The template marks what the assistant wrote, end token included, as trainers expect it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
END_OF_MESSAGE = "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
CALL = "<|call|>"
SPECIAL_TOKENS = (END_OF_TEXT, END_OF_MESSAGE, CALL, *(f"<|{role}|>" for role in ROLES))

CHAT_TEMPLATE = """\
{%- if tools %}{{- '<|system|>' + (tools | tojson) + '<|end|>' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|assistant|>' }}{% generation %}{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}{{- '<|call|>' + ((call.function or call) | tojson) }}{% endfor %}
{{- '<|end|>' }}{% endgeneration %}
{%- else %}
{{- '<|' + message.role + '|>' + (message.content or '') + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""


def train_tokenizer(texts: Iterable[str], vocabulary: int, *, single_digits: bool = False) -> "PreTrainedTokenizerFast":
    """A tokenizer whose merges come from `texts`; words keep the space before them.

    With `single_digits` each is a token of its own: who shall reckon has to see them.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if single_digits
        else byte_level
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_MESSAGE,
        pad_token=END_OF_TEXT,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
