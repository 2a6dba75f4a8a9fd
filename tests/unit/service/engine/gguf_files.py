"""Writes small GGUF files byte by byte: random models of each architecture with blocks of every format."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.service.engine.gguf_quants import FORMATS, BlockFormat

TYPE_IDS = {block.name: number for number, block in FORMATS.items()}
# Where a block's float16 scales are; the rest of its bytes may be anything.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
HIDDEN, WIDE, HEADS, KV_HEADS, LAYERS = 256, 256, 4, 2, 2
MERGES = ["h e", "l l", "he ll", "Ġ w", "Ġw o", "1 2", "Ġ Ġ", "hell o"]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)


def byte_characters() -> list[str]:
    """The printable stand-ins that byte-level BPE has for the 256 bytes, in the order of the bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(moved)) for byte in range(256)]


def random_blocks(block: BlockFormat, values: int, random: np.random.Generator) -> bytes:
    """Bytes of `values` numbers, none of them larger than about one."""
    count = values // block.values
    if block.name == "F32":
        return random.normal(0, 0.1, values).astype("<f4").tobytes()
    if block.name == "F16":
        return random.normal(0, 0.1, values).astype("<f2").tobytes()
    if block.name == "BF16":
        return random.normal(0, 0.1, values).astype("<f4").view("<u2")[1::2].tobytes()
    raw = random.integers(0, 256, (count, block.size), dtype=np.uint8)
    for at in SCALES[block.name]:
        scale = random.normal(0, 0.002 if block.name.endswith("K") else 0.01, count).astype("<f2")
        raw[:, at : at + 2] = scale[:, None].view(np.uint8)
    return raw.tobytes()


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    """Type number and content."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case list():
            items = [_value(item) for item in value]
            kind = items[0][:4]
            return (
                struct.pack("<I", 9)
                + kind
                + struct.pack("<Q", len(items))
                + b"".join(i[4:] for i in items)
            )
    raise TypeError(type(value))


def write_gguf(
    path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...], bytes]]
) -> Path:
    """`tensors`: name -> (format, shape as in torch, bytes)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += _text(key) + _value(value)
    offset, data = 0, b""
    for name, (kind, shape, raw) in tensors.items():
        out += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        out += struct.pack("<IQ", TYPE_IDS[kind], offset)
        padded = raw + bytes(-len(raw) % 32)
        data += padded
        offset += len(padded)
    path.write_bytes(out + bytes(-len(out) % 32) + data)
    return path


def tokenizer_metadata(pre: str, **more: Any) -> dict[str, Any]:
    tokens = [*byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]
    types = [1] * len(tokens) + [3] * len(CONTROL) + [4]
    tokens += [*CONTROL, "<think>"]
    ids = {
        "bos_token_id": tokens.index("<|im_start|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        "eot_token_id": tokens.index("<|endoftext|>"),
        "padding_token_id": tokens.index("<|endoftext|>"),
    }
    fields = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": MERGES}
    return {f"tokenizer.ggml.{k}": v for k, v in {**fields, **ids, **more}.items()} | {
        "tokenizer.chat_template": TEMPLATE
    }


def model_metadata(family: str, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "block_count": LAYERS,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "feed_forward_length": WIDE,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    if family == "qwen3":  # heads that are not hidden / heads wide
        fields |= {"attention.key_length": 128, "attention.value_length": 128}
    return {"general.architecture": family, "general.name": "tiny"} | {
        f"{family}.{key}": value for key, value in {**fields, **more}.items()
    }


def random_tensors(
    family: str, kinds: list[str], vocabulary: int, *, tied: bool, seed: int
) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """All tensors of a model; matrices take turns through `kinds`, vectors are F32."""
    random = np.random.default_rng(seed)
    head = 128 if family == "qwen3" else HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    if not tied:
        shapes["output.weight"] = (vocabulary, HIDDEN)
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        shapes |= {
            f"{at}.attn_norm.weight": (HIDDEN,),
            f"{at}.ffn_norm.weight": (HIDDEN,),
            f"{at}.attn_q.weight": (HEADS * head, HIDDEN),
            f"{at}.attn_k.weight": (KV_HEADS * head, HIDDEN),
            f"{at}.attn_v.weight": (KV_HEADS * head, HIDDEN),
            f"{at}.attn_output.weight": (HIDDEN, HEADS * head),
            f"{at}.ffn_gate.weight": (WIDE, HIDDEN),
            f"{at}.ffn_up.weight": (WIDE, HIDDEN),
            f"{at}.ffn_down.weight": (HIDDEN, WIDE),
        }
        if family == "qwen2":
            shapes |= {
                f"{at}.attn_{part}.bias": ((HEADS if part == "q" else KV_HEADS) * head,)
                for part in "qkv"
            }
        if family == "qwen3":
            shapes |= {f"{at}.attn_{part}_norm.weight": (head,) for part in "qk"}
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    matrices = 0
    for name, shape in shapes.items():
        kind = "F32"
        if len(shape) == 2:
            kind, matrices = kinds[matrices % len(kinds)], matrices + 1
        block = FORMATS[TYPE_IDS[kind]]
        tensors[name] = (kind, shape, random_blocks(block, int(np.prod(shape)), random))
        if "norm" in name:
            tensors[name] = (
                kind,
                shape,
                (1 + random.normal(0, 0.1, shape)).astype("<f4").tobytes(),
            )
    return tensors


def write_model(
    path: Path,
    family: str,
    kinds: list[str],
    *,
    pre: str = "qwen2",
    tied: bool = False,
    seed: int = 0,
    extra: dict[str, tuple[str, tuple[int, ...], bytes]] | None = None,
    **more: Any,
) -> Path:
    metadata = model_metadata(family, **more) | tokenizer_metadata(pre)
    vocabulary = len(metadata["tokenizer.ggml.tokens"])
    tensors = random_tensors(family, kinds, vocabulary, tied=tied, seed=seed)
    return write_gguf(path, metadata, tensors | (extra or {}))
