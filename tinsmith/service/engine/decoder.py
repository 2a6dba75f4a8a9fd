"""The one decoder: Llama, Qwen2 and Qwen3 blocks over a flat list of tokens, for training and sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from tinsmith.service.engine.layers import LoraSlices, project, project_onto, rms_norm, rope, swiglu
from tinsmith.service.engine.lora import LoraPair
from tinsmith.service.engine.model import BaseModel

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Hidden = Float[torch.Tensor, "tokens hidden"]
    Heads = Float[torch.Tensor, "tokens heads head_dim"]

# Adapters by rows: (first row, one past the last, its factors by site key).
RowAdapters = Sequence[tuple[int, int, Mapping[str, LoraPair]]]


class Attention(Protocol):
    """Which tokens see which: within packed sequences, or against a cache."""

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor: ...  # [tokens, heads, head_dim]


def at_site(adapters: RowAdapters, key: str) -> LoraSlices:
    return [(first, last, pairs[key]) for first, last, pairs in adapters if key in pairs]


def run_decoder(
    model: BaseModel,
    tokens: Int[torch.Tensor, " tokens"],
    positions: Int[torch.Tensor, " tokens"],
    attend: Attention,
    adapters: RowAdapters,
) -> Hidden:
    """Hidden states after the final norm. Sequences exist only for `attend`."""
    config, eps = model.config, model.norm_eps
    cos, sin = model.cos[positions], model.sin[positions]
    x = model.embedding[tokens]
    count, qk_heads = x.shape[0], config.heads + config.kv_heads
    for index, layer in enumerate(model.layers):
        normed = rms_norm(x, layer.input_norm, eps)
        qkv = project(normed, layer.qkv, at_site(adapters, f"{index}.qkv"))
        heads = qkv.view(count, -1, config.head_dim)
        qk, v = torch.split_with_sizes(heads, (qk_heads, config.kv_heads), 1)
        if layer.qk_norm is not None:
            qk = rms_norm(qk, layer.qk_norm, eps)
        q, k = torch.split_with_sizes(rope(qk, cos, sin), (config.heads, config.kv_heads), 1)
        mixed = attend(index, q, k, v).reshape(count, config.query_size)
        x = project_onto(x, mixed, layer.output, at_site(adapters, f"{index}.output"))
        normed = rms_norm(x, layer.mlp_norm, eps)
        gate_up = project(normed, layer.gate_up, at_site(adapters, f"{index}.gate_up"))
        x = project_onto(x, swiglu(gate_up), layer.down, at_site(adapters, f"{index}.down"))
    return rms_norm(x, model.final_norm, eps)


def logits_of(model: BaseModel, hidden: Hidden, adapters: RowAdapters) -> torch.Tensor:
    """Float32 logits [rows, vocab] for rows that are few enough to hold them."""
    return project(hidden, model.head, at_site(adapters, "head")).float()
