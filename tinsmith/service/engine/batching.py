"""Training sequences packed without padding under a token budget, and attention among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from tinsmith.service.engine.backend import TrainItem

if TYPE_CHECKING:
    from jaxtyping import Int


@dataclass(frozen=True)
class PackedBatch:
    """Sequences laid end to end, equal lengths next to each other so attention can take them at once."""

    order: list[int]  # which items, in the order they are packed
    lengths: list[int]
    tokens: Int[torch.Tensor, " tokens"]
    positions: Int[torch.Tensor, " tokens"]
    inputs: dict[str, torch.Tensor]  # loss inputs, concatenated likewise
    runs: list[tuple[int, int]]  # (how many sequences, of which length), in order


def pack(
    items: Sequence[TrainItem], budget: int, names: Mapping[str, float], device: torch.device
) -> list[PackedBatch]:
    """Split items into micro-batches of at most `budget` tokens (a longer item is one by itself).

    `names` are the loss inputs to bring along, each with the value that stands where it was not given.
    """
    widths = [_width(item) for item in items]
    order = sorted(range(len(items)), key=lambda i: (widths[i], len(items[i].tokens)))
    groups: list[list[int]] = []
    filled, width = budget + 1, -1
    for index in order:
        length = len(items[index].tokens)
        if filled + length > budget or widths[index] != width:
            groups.append([])
            filled, width = 0, widths[index]
        groups[-1].append(index)
        filled += length
    return [_pack_group([items[i] for i in group], group, names, device) for group in groups]


def _width(item: TrainItem) -> int:
    """Targets a token to within a factor of two, so that little is padded; 0 for the plain [tokens]."""
    targets = item.inputs.get("target_tokens")
    return 0 if targets is None or targets.ndim == 1 else (targets.shape[1] - 1).bit_length() + 1


def _pack_group(
    items: list[TrainItem], order: list[int], names: Mapping[str, float], device: torch.device
) -> PackedBatch:
    lengths = [len(item.tokens) for item in items]
    runs: list[tuple[int, int]] = []
    for length in lengths:
        if runs and runs[-1][1] == length:
            runs[-1] = (runs[-1][0] + 1, length)
        else:
            runs.append((1, length))

    def joined(arrays: list[np.ndarray], dtype: Any) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(arrays).astype(dtype, copy=False)).to(device)

    inputs: dict[str, torch.Tensor] = {}
    for name, default in names.items():
        arrays = _same_width([_input(item, name, default) for item in items])
        inputs[name] = joined(arrays, np.int64 if name == "target_tokens" else np.float32)
    return PackedBatch(
        order=order,
        lengths=lengths,
        tokens=joined([item.tokens for item in items], np.int64),
        positions=joined([np.arange(length) for length in lengths], np.int64),
        inputs=inputs,
        runs=runs,
    )


def _input(item: TrainItem, name: str, default: float) -> np.ndarray:
    given = item.inputs.get(name)
    shape = item.inputs["target_tokens"].shape if given is None else ()
    return np.full(shape, default, np.float32) if given is None else given


def _same_width(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Rows of [tokens, K] filled up with zeros: targets that no weight counts."""
    widest = max(array.shape[-1] for array in arrays) if arrays[0].ndim == 2 else 0
    return [
        array
        if array.ndim == 1 or array.shape[1] == widest
        else np.pad(array, ((0, 0), (0, widest - array.shape[1])))
        for array in arrays
    ]


def causal_attention(
    runs: Sequence[tuple[int, int]], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Each sequence sees itself, up to the present token; runs of equal length go as one batch."""
    sizes = [count * length for count, length in runs]
    outs: list[torch.Tensor] = []
    parts = zip(runs, q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
    for (count, length), *qkv in parts:
        query, key, value = (p.unflatten(0, (count, length)).transpose(1, 2) for p in qkv)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        outs.append(mixed.transpose(1, 2).flatten(0, 1))
    return outs[0] if len(outs) == 1 else torch.cat(outs)
