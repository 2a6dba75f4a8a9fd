"""The tokenizer of a GGUF file, rebuilt from its metadata in Hugging Face's format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinsmith.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL, USER_DEFINED = 3, 4  # kinds of tokens that are never built from merges

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = _WORDS + r"|\p{N}{1,3}" + _REST
QWEN2_SPLIT = _WORDS + r"|\p{N}" + _REST

# What `tokenizer.ggml.pre` says -> how text is cut into words before merging.
SPLITS = {
    "gpt-2": "gpt2",
    "default": "gpt2",
    "smollm": "digits",
    "starcoder": "digits",
    "llama-bpe": "llama3",
    "llama3": "llama3",
    "llama-v3": "llama3",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
}


def build_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE with the file's tokens and merges; other kinds are refused."""
    from tokenizers import AddedToken, Tokenizer, models

    kind = metadata.get("tokenizer.ggml.model")
    tokens, merges = _list(metadata, "tokens"), _list(metadata, "merges")
    if kind != "gpt2" or not tokens:
        raise ModelError(
            f"the GGUF file's tokenizer is of the kind {kind!r}; only byte-level BPE ('gpt2') is rebuilt. "
            "Use the model's Hugging Face directory instead."
        )
    split = SPLITS.get(metadata.get("tokenizer.ggml.pre", "default"))
    if split is None:
        raise ModelError(
            f"the GGUF file cuts text as {metadata['tokenizer.ggml.pre']!r}, which is not known here; known are "
            f"{', '.join(SPLITS)}. Use the model's Hugging Face directory instead."
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        # Llama 3 takes a word that is in the vocabulary whole, whatever its merges say.
        model = models.BPE(vocabulary, pairs, ignore_merges=split == "llama3")
    except Exception as error:  # the library has no kind of its own for a bad merge
        raise ModelError(f"the GGUF file's merges do not fit its tokens: {error}.") from error
    tokenizer = Tokenizer(model)
    _set_text_rules(tokenizer, split)
    types = _list(metadata, "token_type")
    of_kind: dict[int, list[str]] = {CONTROL: [], USER_DEFINED: []}
    for token, token_type in zip(tokens, types, strict=False):
        if token_type in of_kind:
            of_kind[token_type].append(token)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in of_kind[CONTROL]])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in of_kind[USER_DEFINED]])
    if metadata.get("tokenizer.ggml.add_bos_token", split == "llama3"):
        _begin_with(tokenizer, special_tokens(metadata).get("bos_token"))
    return tokenizer


def _list(metadata: dict[str, Any], name: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    return value if isinstance(value, list) else []


def _set_text_rules(tokenizer: Tokenizer, split: str) -> None:
    """How text becomes words, and tokens become text again."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors

    if split in ("gpt2", "digits"):
        steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        if split == "digits":
            steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    else:
        pattern = Regex(LLAMA3_SPLIT if split == "llama3" else QWEN2_SPLIT)
        steps = [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()


def _begin_with(tokenizer: Tokenizer, bos: str | None) -> None:
    from tokenizers import processors

    if bos is None:
        return
    index = tokenizer.token_to_id(bos)
    template = processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos}:1 $B:1", [(bos, index)])
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template]
    )


def special_tokens(metadata: dict[str, Any]) -> dict[str, str]:
    """The tokens that Hugging Face names in tokenizer_config.json, as far as the file has them."""
    tokens = _list(metadata, "tokens")
    names = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "pad_token": "padding_token_id",
    }
    found: dict[str, str] = {}
    for name, key in names.items():
        index = metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(index, int) and 0 <= index < len(tokens):
            found[name] = tokens[index]
    return found


def end_tokens(metadata: dict[str, Any]) -> list[int]:
    """Ids at which generation ends: of the text, of a turn, of a message."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    return list(dict.fromkeys(index for index in found if isinstance(index, int)))


def tokenizer_config(metadata: dict[str, Any], max_context: int) -> dict[str, Any]:
    """What goes into tokenizer_config.json beside the tokenizer itself."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_context,
        "clean_up_tokenization_spaces": False,
        **special_tokens(metadata),
    }
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    return config
