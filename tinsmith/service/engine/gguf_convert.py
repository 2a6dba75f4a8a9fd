"""A GGUF file as an ordinary Hugging Face directory, made once and kept under tinsmith's home.

Everything that knows such directories (the SDK's tokenizers, PEFT, exports) then knows GGUF files too.
First come configuration and tokenizer, which is quick; the weights follow when they are asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tinsmith import settings
from tinsmith.errors import ModelError, StorageError
from tinsmith.service.engine.gguf import GgufFile, open_gguf
from tinsmith.service.engine.gguf_tokenizer import build_tokenizer, end_tokens, tokenizer_config

if TYPE_CHECKING:
    import torch

LAYOUT = 1  # one more when the same file would be converted differently
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
SHARD_BYTES = 2 << 30
PART_PREFIX = ".weights-"
INDEX_FILE = "model.safetensors.index.json"
ROPE_FACTORS = "rope_freqs.weight"

_MODULES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


# ── the directory ────────────────────────────────────────────────────────────────────────────


def gguf_directory(path: Path) -> Path:
    """The Hugging Face directory of a GGUF file: configuration and tokenizer, made when missing."""
    path = path.resolve()
    file = open_gguf(path)
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem)  # the SDK cuts names at a colon
    target = settings.home() / "models" / f"{stem}-{_fingerprint(file)}"
    if not target.is_dir():
        _make_directory(file, target)
    return target


def gguf_weights(directory: Path, path: Path) -> None:
    """See to it that the directory of a GGUF file holds its weights as safetensors."""
    if _has_weights(directory):
        return
    from filelock import FileLock

    with FileLock(directory / "weights.lock"):  # a second process waits instead of doing the same
        for left in directory.glob(f"{PART_PREFIX}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        if not _has_weights(directory):
            _write_weights(open_gguf(path), directory)


def _has_weights(directory: Path) -> bool:
    return any((directory / name).is_file() for name in (INDEX_FILE, "model.safetensors"))


def _fingerprint(file: GgufFile) -> str:
    """Names the content without reading all of it: the header, and the beginning of every tensor."""
    digest = hashlib.sha256(f"{LAYOUT} {len(file.data)}".encode())
    digest.update(file.data[: file.header_size])
    for tensor in file.tensors.values():
        digest.update(file.data[tensor.start : tensor.start + min(tensor.size, 4096)])
    return digest.hexdigest()[:16]


def _make_directory(file: GgufFile, target: Path) -> None:
    """Written beside its place and moved there whole; of two that do this at once, the first one stays."""
    config = hugging_face_config(file)
    tokenizer = build_tokenizer(file.metadata)
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": config["eos_token_id"]},
        "tokenizer_config.json": tokenizer_config(file.metadata, config["max_position_embeddings"]),
    }
    part: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        tokenizer.save(str(part / "tokenizer.json"))
        for name, content in files.items():
            (part / name).write_text(json.dumps(content, indent=2))
        part.rename(target)
    except OSError as error:
        if not target.is_dir():
            raise _storage_error(target, error) from error
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def _storage_error(target: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{target} could not be written: {error.strerror or error}; free some space or set TINSMITH_HOME."
    )


# ── configuration ────────────────────────────────────────────────────────────────────────────


def hugging_face_config(file: GgufFile) -> dict[str, Any]:
    """config.json of the model in this file; what it cannot express is refused."""
    data, names = file.metadata, file.tensors
    family = data.get("general.architecture")
    if family not in ARCHITECTURES:
        raise ModelError(
            f"{file.path} holds a model of the architecture {family!r}; read are {', '.join(ARCHITECTURES)}."
        )

    def need(key: str) -> Any:
        value = data.get(f"{family}.{key}")
        if not isinstance(value, int | float) or value <= 0:
            raise ModelError(f"{file.path} does not say {family}.{key}; is it a whole model?")
        return value

    for name in ("token_embd.weight", "output_norm.weight"):
        if name not in names:
            raise ModelError(f"{file.path} has no tensor {name!r}; is it a whole model?")
    if data.get("split.count", 0) > 1:
        raise ModelError(f"{file.path} is one of several parts; join them with llama-gguf-split.")
    architecture, model_type = ARCHITECTURES[family]
    heads, hidden = need("attention.head_count"), need("embedding_length")
    head_dim = data.get(f"{family}.attention.key_length") or hidden // heads
    ends = end_tokens(data)
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": names["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": data.get(f"{family}.attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": need("context_length"),
        "rope_parameters": _rope(file, family, head_dim),
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "bos_token_id": data.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None),
        "pad_token_id": data.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }
    if family == "llama":
        config["mlp_bias"] = "blk.0.ffn_up.bias" in names
    return config


def _rope(file: GgufFile, family: str, head_dim: int) -> dict[str, Any]:
    data = file.metadata
    turned = data.get(f"{family}.rope.dimension_count") or head_dim
    if turned != head_dim:
        raise ModelError(
            f"{file.path} turns {turned} of {head_dim} numbers a head by position; only all are read."
        )
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": data.get(f"{family}.rope.freq_base") or 10000.0,
    }
    if ROPE_FACTORS in file.tensors:
        return rope | _llama3_rope(file, rope["rope_theta"], head_dim)
    kind = data.get(f"{family}.rope.scaling.type") or "none"
    if kind == "none":
        return rope
    if kind not in ("linear", "yarn"):
        raise ModelError(
            f"{file.path} scales RoPE by {kind!r}; none, linear, yarn and Llama 3's are read."
        )
    rope |= {"rope_type": kind, "factor": data.get(f"{family}.rope.scaling.factor") or 1.0}
    original = data.get(f"{family}.rope.scaling.original_context_length")
    return rope | ({"original_max_position_embeddings": original} if original else {})


def _llama3_rope(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3's settings, of which the file has only the result: a divisor for every frequency."""
    divisors = file.read(ROPE_FACTORS)
    settings_of = {
        "rope_type": "llama3",
        "factor": float(divisors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    base = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = settings_of["original_max_position_embeddings"] * base / (2 * np.pi)
    smooth = np.clip((turns - 1.0) / (4.0 - 1.0), 0, 1)
    expected = 1 / ((1 - smooth) / settings_of["factor"] + smooth)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
        raise ModelError(
            f"{file.path} has RoPE factors that are not those of Llama 3; use the model's Hugging Face directory."
        )
    return settings_of


# ── weights ──────────────────────────────────────────────────────────────────────────────────


def hugging_face_name(name: str) -> str | None:
    """A tensor's name in the Hugging Face model; None for what is no weight there."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _MODULES:
        return None
    return f"model.layers.{match[1]}.{_MODULES[match[2]]}.{match[3]}"


def _unpermuted(tensor: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp keeps the two halves of a Llama head interleaved, Hugging Face one after the other."""
    rest = tensor.shape[1:]
    return tensor.reshape(heads, -1, 2, *rest).swapaxes(1, 2).reshape(tensor.shape)


def read_weights(file: GgufFile) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every weight under its Hugging Face name, in the order of the file."""
    family = file.metadata["general.architecture"]
    heads = file.metadata[f"{family}.attention.head_count"]
    kv_heads = file.metadata.get(f"{family}.attention.head_count_kv") or heads
    for name in file.tensors:
        if name == ROPE_FACTORS:
            continue
        target = hugging_face_name(name)
        if target is None:
            raise ModelError(
                f"{file.path} has a tensor {name!r}, which no {family} model here has; use the model's "
                "Hugging Face directory, if that kind is supported."
            )
        tensor = file.read(name)
        if family == "llama" and re.search(r"attn_[qk]\.", name):
            tensor = _unpermuted(tensor, heads if "attn_q." in name else kv_heads)
        yield target, tensor


def _write_weights(file: GgufFile, directory: Path) -> None:
    """One safetensors file, or shards and then their index; the last rename makes them count."""
    import torch

    needed = 4 * sum(int(np.prod(tensor.shape)) for tensor in file.tensors.values())
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise StorageError(
            f"converting {file.path} needs {needed / 1e9:.1f} GB in {directory}, and {free / 1e9:.1f} GB are "
            "free; free some space or set TINSMITH_HOME."
        )
    shards: list[list[str]] = []
    shard: dict[str, torch.Tensor] = {}
    part = Path(tempfile.mkdtemp(prefix=PART_PREFIX, dir=directory))
    try:
        for name, tensor in read_weights(file):
            if shard and sum(t.nbytes for t in shard.values()) + tensor.nbytes > SHARD_BYTES:
                shards.append(_write_shard(shard, part / f"{len(shards)}"))
                shard = {}
            shard[name] = torch.from_numpy(np.ascontiguousarray(tensor))
        shards.append(_write_shard(shard, part / f"{len(shards)}"))
        _install(shards, part, directory)
    except OSError as error:
        raise _storage_error(directory, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_shard(shard: dict[str, torch.Tensor], to: Path) -> list[str]:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(shard, to, metadata={"format": "pt"})
    except SafetensorError as error:  # what the disk refused comes wrapped
        raise OSError(str(error)) from error
    with to.open("rb") as written:
        os.fsync(written.fileno())
    return list(shard)


def _install(shards: list[list[str]], part: Path, directory: Path) -> None:
    if len(shards) == 1:
        (part / "0").rename(directory / "model.safetensors")
        return
    where: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (part / f"{number}").rename(directory / file)
        where |= dict.fromkeys(names, file)
    index = part / INDEX_FILE
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    index.rename(directory / INDEX_FILE)
