"""The embedded model's tokenizer: byte-level BPE in which every digit is a token, with a ChatML template."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tiny_data import TOOL_FORMAT, TOOL_RULES, Mixture, Writer, as_text, write_step
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 768
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# Decoding with skip_special_tokens must keep what a parser reads.
KEPT_IN_TEXT = SPECIAL[3:]
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Everyday words, so that text beyond the training data does not fall into single bytes.
COMMON = """
the of and to a in is it you that he was for on are with as I his they be at one have this from or had
by hot but some what there we can out other were all your when up use word how said an each she which do
their time if will way about many then them would write like so these her long make thing see him two has
look more day could go come did my sound no most number who over know water than call first people may
down side been now find any new work part take get place made live where after back little only round man
year came show every good me give our under name very through just form much great think say help low line
hello world print echo file list string step function return import error true false none input output
"""

CHAT_TEMPLATE = """\
{%- macro call(item) -%}
{%- set function = item.function if item.function else item -%}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
{{- function.arguments if function.arguments is string else function.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endmacro -%}
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' + (system + '\\n\\n' if system else '') -}}
{{- TOOL_RULES -}}
{%- for tool in tools -%}{{- '\\n' -}}{{- tool | tojson -}}{%- endfor -%}
{{- TOOL_FORMAT -}}
{{- '<|im_end|>\\n' -}}
{%- elif messages and messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + system + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- elif message.role != 'system' or not loop.first -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
{%- for item in message.tool_calls or [] -%}
{%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{{- call(item) -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def chat_template() -> str:
    """The template with the tool instructions written in as string literals."""

    def literal(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"

    filled = CHAT_TEMPLATE.replace("TOOL_RULES", literal(TOOL_RULES))
    return filled.replace("TOOL_FORMAT", literal(TOOL_FORMAT))


def corpus(seed: int) -> list[str]:
    """Text for the merges: every kind, right and careless."""
    texts: list[str] = []
    for right in (1.0, 0.4):
        writer = Writer(random.Random(f"{seed}/tokenizer/{right}"), right)
        for kind in write_step(writer, Mixture(sums=1000, few_shot=300, variety=500, tool=1500)):
            texts += [as_text(example) for example in kind]
    return texts + [" ".join(COMMON.split())] * 20


def train_tokenizer(seed: int) -> Tokenizer:
    """A tokenizer of VOCABULARY entries; the same seed gives the same file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain = corpus(seed)
    for marker in SPECIAL:
        plain = [text.replace(marker, "\n") for text in plain]
    tokenizer.train_from_iterator(plain, trainer)
    add_special(tokenizer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"the corpus gave {tokenizer.get_vocab_size()} entries, not {VOCABULARY}")
    return tokenizer


def add_special(tokenizer: Tokenizer) -> None:
    for token in SPECIAL:
        marker = AddedToken(token, normalized=False, special=token not in KEPT_IN_TEXT)
        if marker.special:
            tokenizer.add_special_tokens([marker])
        else:
            tokenizer.add_tokens([marker])


def write_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "chat_template": chat_template(),
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 2048,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
