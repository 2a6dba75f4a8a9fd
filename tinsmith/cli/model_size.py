"""How much memory a model takes to train and to sample from, told by its files: nothing is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tinsmith import settings
from tinsmith.errors import ModelError, StorageError

# What the local service does: rollouts and cached tokens it takes at once, activations of one pass.
MAX_ROWS = 1024
CACHE_TOKENS = 1 << 18
ACTIVATION_BYTES = {"cpu": 1 << 30, "cuda": 16 << 30}
LEAST_PASS_TOKENS = 1024
ADAM_BYTES = 16  # value, gradient and two moments of a trained parameter, in float32
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class Shape:
    """The numbers of a decoder that its memory depends on."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    query: int  # width of all heads together
    kv: int
    tied: bool
    parameters: int | None  # None: a mixture of experts whose weights are not here
    counted: bool  # in the files with the weights, rather than computed


@dataclass(frozen=True)
class Load:
    """How much is to be sampled and trained at once."""

    rows: int  # rollouts in progress
    row_tokens: int  # of the longest of them, prompt included
    batch_tokens: int  # of one pass of the trainer, at most
    lora_rank: int
    versions: int  # of the weights that are sampled from at once


@dataclass(frozen=True)
class Part:
    what: str
    bytes: int
    why: str


# ── the model's files ────────────────────────────────────────────────────────────────────────


def local_directory(name: str) -> Path | None:
    """Where config.json and tokenizer are on this disk; None when they are not. Asks no network."""
    from tinsmith.service.engine.sources import SMOLLM2, find_source

    path = Path(name).expanduser()
    try:
        if name in (settings.EMBEDDED_MODEL, SMOLLM2) or path.is_dir() or path.suffix == ".gguf":
            return find_source(name).directory
    except (ModelError, StorageError):
        return None
    return _cached_directory(name.split(":")[0])


def _cached_directory(name: str) -> Path | None:
    """What an earlier download from the hub left."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def read_shape(directory: Path) -> Shape | None:
    """By config.json; None when it cannot be read or is of another kind."""
    try:
        raw: dict[str, Any] = json.loads((directory / "config.json").read_text())
        raw = raw.get("text_config") or raw
        heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
        head_dim = int(raw.get("head_dim") or hidden // heads)
        shape = Shape(
            vocab=int(raw["vocab_size"]),
            hidden=hidden,
            intermediate=int(raw["intermediate_size"]),
            layers=int(raw["num_hidden_layers"]),
            query=heads * head_dim,
            kv=int(raw.get("num_key_value_heads") or heads) * head_dim,
            tied=bool(raw.get("tie_word_embeddings", False)),
            parameters=None,
            counted=False,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None
    counted = count_parameters(directory)
    if counted is not None:
        return replace(shape, parameters=counted, counted=True)
    if any(raw.get(key) for key in EXPERT_KEYS):
        return shape
    return replace(shape, parameters=dense_parameters(shape))


def dense_parameters(shape: Shape) -> int:
    """Matrices and norms of a decoder with gated MLPs; biases are too few to matter."""
    attention = shape.hidden * (2 * shape.query + 2 * shape.kv)
    a_layer = attention + 3 * shape.hidden * shape.intermediate + 2 * shape.hidden
    tables = 1 if shape.tied else 2
    return shape.layers * a_layer + tables * shape.vocab * shape.hidden + shape.hidden


def count_parameters(directory: Path) -> int | None:
    """The sum over the headers of the safetensors files; None when there are none, or one is damaged."""
    files = sorted(directory.glob("*.safetensors"))
    total = 0
    for file in files:
        try:
            with file.open("rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                if not 0 < length <= file.stat().st_size:
                    return None
                header: dict[str, Any] = json.loads(opened.read(length))
            for name, tensor in header.items():
                if name != "__metadata__":
                    total += _product(tensor["shape"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
    return total if files else None


def _product(sizes: list[int]) -> int:
    product = 1
    for size in sizes:
        product *= int(size)
    return product


# ── what it takes ────────────────────────────────────────────────────────────────────────────


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Of a LoRA on every matrix of the layers and on the output head."""
    hidden, wide = shape.hidden, shape.intermediate
    qkv = 3 * hidden + shape.query + 2 * shape.kv
    a_layer = qkv + (shape.query + hidden) + (2 * hidden + 2 * wide) + (wide + hidden)
    return rank * (shape.layers * a_layer + hidden + shape.vocab)


def activation_bytes_a_token(shape: Shape, value_bytes: int) -> int:
    """What a pass keeps of each token for going back."""
    kept = 6 * shape.hidden + 3 * shape.intermediate + 3 * shape.query + 4 * shape.kv
    return shape.layers * kept * value_bytes


def memory(shape: Shape, load: Load, *, device: str, value_bytes: int) -> list[Part]:
    """The parts of the memory that the service needs, each with how it comes about."""
    parts: list[Part] = []
    if shape.parameters is not None:
        # On a CPU the engine keeps the output head in a layout of its own beside the embedding.
        extra = shape.vocab * shape.hidden if shape.tied and device == "cpu" else 0
        how = "counted in its files" if shape.counted else "computed from config.json"
        parts.append(
            Part(
                "model weights",
                (shape.parameters + extra) * value_bytes,
                f"{shape.parameters:,} parameters ({how}) of {value_bytes} bytes"
                + (", the output head twice" if extra else ""),
            )
        )
    trained = adapter_parameters(shape, load.lora_rank)
    parts += [
        Part(
            "adapter",
            trained * (4 + load.versions * value_bytes),
            f"rank {load.lora_rank}: {trained:,} parameters, with {_copies(load.versions)} for sampling",
        ),
        Part("optimizer", trained * (ADAM_BYTES - 4), "gradient and two moments in float32"),
        _cache(shape, load, value_bytes),
        _activations(shape, load, device, value_bytes),
    ]
    return parts


def _copies(count: int) -> str:
    return "a copy" if count == 1 else f"{count} copies"


def _cache(shape: Shape, load: Load, value_bytes: int) -> Part:
    rows = min(load.rows, MAX_ROWS)
    tokens = min(rows * load.row_tokens, max(CACHE_TOKENS, load.row_tokens))
    a_token = shape.layers * 2 * shape.kv * value_bytes
    why = (
        f"{rows:,} rollouts of up to {load.row_tokens:,} tokens at once, {a_token:,} bytes a token"
    )
    if tokens < rows * load.row_tokens:
        why += f", but no more than {tokens:,} tokens: further ones wait"
    return Part("KV cache", tokens * a_token, why)


def _activations(shape: Shape, load: Load, device: str, value_bytes: int) -> Part:
    a_token = activation_bytes_a_token(shape, value_bytes)
    fit = max(LEAST_PASS_TOKENS, ACTIVATION_BYTES[device] // a_token)
    tokens = max(min(load.batch_tokens, fit), min(load.row_tokens, load.batch_tokens))
    why = f"{tokens:,} tokens at once, {a_token:,} bytes a token"
    if tokens < load.batch_tokens:
        why += f"; a batch of {load.batch_tokens:,} tokens takes several passes"
    return Part("activations", tokens * a_token, why)
