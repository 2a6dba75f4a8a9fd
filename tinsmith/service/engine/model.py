"""Base models: read a configuration, load the weights for the decoder."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tinsmith.errors import ModelError
from tinsmith.service.engine.backend import ModelInfo
from tinsmith.service.engine.sources import find_source, weight_files

if TYPE_CHECKING:
    from jaxtyping import Float

SUPPORTED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
MAX_LORA_RANK = 256


@dataclass(frozen=True)
class DecoderConfig:
    """The numbers that tell one supported decoder from another."""

    architecture: str
    vocab_size: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    max_context: int
    qk_norm: bool
    tied: bool
    eos_ids: tuple[int, ...]
    rope: dict[str, Any]

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass
class LinearWeights:
    """A frozen matrix in [in, out] layout: on a CPU, rows of `x @ weight` then do not depend on how
    many rows there are (from two upwards), which makes sampling independent of the batch."""

    weight: Float[torch.Tensor, "inputs outputs"]
    bias: Float[torch.Tensor, " outputs"] | None = None


@dataclass
class LayerWeights:
    input_norm: Float[torch.Tensor, " hidden"]
    qkv: LinearWeights
    qk_norm: Float[torch.Tensor, "qk_heads head_dim"] | None
    output: LinearWeights
    mlp_norm: Float[torch.Tensor, " hidden"]
    gate_up: LinearWeights
    down: LinearWeights


@dataclass
class BaseModel:
    """Weights of one base model on one device; shared, read-only, by every adapter."""

    info: ModelInfo
    config: DecoderConfig
    embedding: Float[torch.Tensor, "vocab hidden"]
    layers: list[LayerWeights]
    final_norm: Float[torch.Tensor, " hidden"]
    norm_eps: Float[torch.Tensor, ""]
    head: LinearWeights
    cos: Float[torch.Tensor, "positions 1 head_dim"]
    sin: Float[torch.Tensor, "positions 1 head_dim"]
    device: torch.device
    dtype: torch.dtype


# ── finding ──────────────────────────────────────────────────────────────────────────────────


def describe(name: str) -> ModelInfo:
    """What a model's directory says of it; its weights are not read."""
    source = find_source(name)
    config = read_config(source.directory / "config.json")
    return ModelInfo(
        name=source.name,
        directory=source.directory,
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        max_context=config.max_context,
        max_lora_rank=min(MAX_LORA_RANK, config.hidden),
        eos_ids=config.eos_ids,
        on_hub=source.hub,
    )


# ── configuration ────────────────────────────────────────────────────────────────────────────


def read_config(file: Path) -> DecoderConfig:
    """Parse a Hugging Face config.json of a supported family, old or new style of RoPE settings."""
    try:
        raw: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {file}: {error}.") from error
    architecture = (raw.get("architectures") or ["(none named)"])[0]
    if architecture not in SUPPORTED:
        raise ModelError(
            f"architecture {architecture} is not supported; supported are {', '.join(SUPPORTED)}."
        )
    if raw.get("use_sliding_window"):
        raise ModelError(f"{architecture} with sliding-window attention is not supported.")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f"activation {raw['hidden_act']!r} is not supported; expected 'silu'.")
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    rope.setdefault("rope_theta", raw.get("rope_theta", 10000.0))
    heads = raw["num_attention_heads"]
    eos = raw.get("eos_token_id")
    return DecoderConfig(
        architecture=architecture,
        vocab_size=raw["vocab_size"],
        hidden=raw["hidden_size"],
        intermediate=raw["intermediate_size"],
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        max_context=raw.get("max_position_embeddings", 2048),
        qk_norm=architecture == "Qwen3ForCausalLM",
        tied=bool(raw.get("tie_word_embeddings", False)),
        eos_ids=_eos_ids(eos, file.parent),
        rope=rope,
    )


def _eos_ids(from_config: int | list[int] | None, directory: Path) -> tuple[int, ...]:
    """generation_config.json knows the end-of-turn tokens that config.json may leave out."""
    found: list[int] = []
    generation = directory / "generation_config.json"
    sources: list[Any] = [from_config]
    if generation.is_file():
        sources.append(json.loads(generation.read_text()).get("eos_token_id"))
    for source in sources:
        found += source if isinstance(source, list) else [source] if source is not None else []
    return tuple(dict.fromkeys(found))


def rope_frequencies(config: DecoderConfig) -> tuple[torch.Tensor, float]:
    """Inverse frequencies and the factor on cos and sin, for each supported kind of RoPE scaling."""
    rope, dim = config.rope, config.head_dim
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = float(rope["rope_theta"])
    base = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if kind == "default":
        return base, 1.0
    factor = float(rope.get("factor", 1.0))
    original = int(rope.get("original_max_position_embeddings") or config.max_context)
    if kind == "linear":
        return base / factor, 1.0
    if kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        wavelength = 2 * math.pi / base
        smooth = (original / wavelength - low) / (high - low)
        blended = (1 - smooth) * base / factor + smooth * base
        scaled = torch.where(wavelength > original / low, base / factor, base)
        medium = (wavelength <= original / low) & (wavelength >= original / high)
        return torch.where(medium, blended, scaled), 1.0
    if kind == "yarn":
        fast, slow = float(rope.get("beta_fast") or 32), float(rope.get("beta_slow") or 1)

        def dimension(rotations: float) -> float:
            return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        first, last = dimension(fast), dimension(slow)
        if rope.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        ramp = (torch.arange(dim // 2, dtype=torch.float32) - first) / max(last - first, 1e-3)
        keep = 1 - ramp.clamp(0, 1)
        scale = rope.get("attention_factor") or (
            0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        )
        return base / factor * (1 - keep) + base * keep, float(scale)
    raise ModelError(
        f"RoPE scaling {kind!r} is not supported; supported are default, linear, llama3, yarn."
    )


def rope_tables(config: DecoderConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and (in the first half negated) sin for every position, [positions, 1, head_dim]."""
    frequencies, scale = rope_frequencies(config)
    angles = torch.arange(config.max_context, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat((cos, cos), dim=-1)[:, None, :], torch.cat((-sin, sin), dim=-1)[:, None, :]


# ── loading ──────────────────────────────────────────────────────────────────────────────────


def load_model(info: ModelInfo, device: torch.device, dtype: torch.dtype) -> BaseModel:
    """Read the safetensors files and lay the matrices out for the decoder."""
    config = read_config(info.directory / "config.json")
    tensors = _Tensors(weight_files(find_source(info.name)), device, dtype)

    def take(name: str) -> torch.Tensor:
        tensor = tensors.get(name)
        if tensor is None:
            raise ModelError(
                f"{info.name!r} has no tensor {name!r} in its weights; is it complete?"
            )
        return tensor

    def linear(*names: str) -> LinearWeights:
        weight = torch.cat([take(f"{name}.weight") for name in names]).t().contiguous()
        biases = [tensors.get(f"{name}.bias") for name in names]
        present = [bias for bias in biases if bias is not None]
        return LinearWeights(weight, torch.cat(present) if present else None)

    layers: list[LayerWeights] = []
    for index in range(config.layers):
        at = f"model.layers.{index}"
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        qk_norm = None
        if config.qk_norm:
            q_norm, k_norm = take(f"{attention}.q_norm.weight"), take(f"{attention}.k_norm.weight")
            heads = [q_norm.expand(config.heads, -1), k_norm.expand(config.kv_heads, -1)]
            qk_norm = torch.cat(heads).contiguous()
        layers.append(
            LayerWeights(
                input_norm=take(f"{at}.input_layernorm.weight"),
                qkv=linear(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
                qk_norm=qk_norm,
                output=linear(f"{attention}.o_proj"),
                mlp_norm=take(f"{at}.post_attention_layernorm.weight"),
                gate_up=linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
                down=linear(f"{mlp}.down_proj"),
            )
        )
    embedding = take("model.embed_tokens.weight")
    head = None if config.tied else tensors.get("lm_head.weight")
    head = (embedding if head is None else head).t()
    cos, sin = rope_tables(config)
    return BaseModel(
        info=info,
        config=config,
        embedding=embedding,
        layers=layers,
        final_norm=take("model.norm.weight"),
        norm_eps=torch.tensor(config.norm_eps, device=device),
        # A GPU multiplies a transposed view as fast; a CPU needs the layout (see LinearWeights).
        head=LinearWeights(head.contiguous() if device.type == "cpu" else head),
        cos=cos.to(device, dtype),
        sin=sin.to(device, dtype),
        device=device,
        dtype=dtype,
    )


class _Tensors:
    """Tensors of safetensors files, read one at a time, so that no second copy of a model is in memory."""

    def __init__(self, files: list[Path], device: torch.device, dtype: torch.dtype) -> None:
        from safetensors import SafetensorError, safe_open

        self.device = device
        self.dtype = dtype
        self.where: dict[str, Any] = {}  # name -> the open file that has it
        for file in files:
            try:
                opened = safe_open(file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"cannot read {file}: {error}; download it again.") from error
            self.where |= dict.fromkeys(opened.keys(), opened)

    def get(self, name: str) -> torch.Tensor | None:
        """A copy: what is read is a view of the mapped file, which would stay in memory with it."""
        opened = self.where.get(name)
        if opened is None:
            return None
        return opened.get_tensor(name).to(self.device, self.dtype, copy=True)
