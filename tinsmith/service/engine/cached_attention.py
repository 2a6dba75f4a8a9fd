"""Attention against the paged cache: prompts when they arrive, then one token a row a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from tinsmith.service.engine.batching import causal_attention
from tinsmith.service.engine.kv_cache import BLOCK, KVCache

QUERY_CHUNK = 512  # prompt tokens whose attention mask exists at once
# Torch's CPU kernel takes keys 512 at a time, and MKL sums products of more than 384 in two parts.
# Rows are therefore kept in two groups, padded to fixed multiples, so that a row's sums never
# depend on how long its neighbours are.
SHORT = 384
LONG_MULTIPLE = 512
HEADROOM = 64  # tokens that a gathered copy can grow before it is made anew


def slots_of(blocks: Sequence[int], first: int, last: int) -> NDArray[np.int64]:
    """Cache slots of token positions first..last-1."""
    positions = np.arange(first, last)
    return np.asarray(blocks, dtype=np.int64)[positions // BLOCK] * BLOCK + positions % BLOCK


@dataclass(frozen=True)
class PromptPart:
    """One prompt's tokens that are computed now; those before `cached` are in the cache already."""

    cached: int
    length: int  # of the whole prompt
    blocks: list[int]

    @property
    def new(self) -> int:
        return self.length - self.cached


class PromptAttention:
    """Packed prompts: those from their first token see only each other, the rest read the cache."""

    def __init__(self, cache: KVCache, parts: Sequence[PromptPart], device: torch.device) -> None:
        self.cache, self.device = cache, device
        slots = [slots_of(part.blocks, part.cached, part.length) for part in parts]
        self.slots = torch.from_numpy(np.concatenate(slots)).to(device)
        # neighbours of equal length from the first token on are one run
        self.runs: list[list[PromptPart]] = []
        for part in parts:
            last = self.runs[-1][-1] if self.runs else None
            if last and not part.cached and not last.cached and last.length == part.length:
                self.runs[-1].append(part)
            else:
                self.runs.append([part])
        self.prefix_slots = {
            id(part): torch.from_numpy(slots_of(part.blocks, 0, part.length)).to(device)
            for part in parts
            if part.cached
        }

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        self.cache.write(layer, self.slots, k, v)
        outs: list[torch.Tensor] = []
        start = 0
        for run in self.runs:
            stop = start + sum(part.new for part in run)
            rows = slice(start, stop)
            if run[0].cached:
                outs.append(self._over_cache(layer, q[rows], run[0]))
            else:
                outs.append(causal_attention([(len(run), run[0].new)], q[rows], k[rows], v[rows]))
            start = stop
        return torch.cat(outs)

    def _over_cache(self, layer: int, q: torch.Tensor, part: PromptPart) -> torch.Tensor:
        keys, values = self.cache.read(layer, self.prefix_slots[id(part)]).unbind(1)
        keys, values = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
        outs: list[torch.Tensor] = []
        for first in range(0, part.new, QUERY_CHUNK):
            some = q[first : first + QUERY_CHUNK]
            at = torch.arange(first, first + len(some), device=self.device) + part.cached
            seen = torch.arange(part.length, device=self.device) <= at[:, None]
            query = some.transpose(0, 1)[None]
            mixed = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=seen, enable_gqa=True
            )
            outs.append(mixed[0].transpose(0, 1))
        return torch.cat(outs)


@dataclass
class _Group:
    """Rows of similar length with a contiguous copy of their keys and values."""

    rows: torch.Tensor | None  # None: all rows, in order
    index: NDArray[np.int64]
    capacity: int
    copies: list[torch.Tensor]  # per layer [rows, capacity, 2, kv_heads, head_dim]
    mask: torch.Tensor  # [rows, 1, 1, capacity], 0 or -inf
    multiple: int
    lane: torch.Tensor  # 0..rows-1
    at: torch.Tensor  # where this step's token goes
    padded: int = 0


class TokenAttention:
    """One new token a row. The rows' cached keys and values are gathered once and then extended in
    place each step, until the rows change or outgrow the copy."""

    def __init__(self, cache: KVCache, device: torch.device) -> None:
        self.cache, self.device = cache, device
        self.groups: list[_Group] = []
        self.slots = torch.empty(0, dtype=torch.int64)

    def set_rows(self, blocks: Sequence[Sequence[int]], lengths: NDArray[np.int64]) -> None:
        """Take these rows, with `lengths` tokens of each in the cache."""
        self.groups = []
        short = lengths + 1 <= SHORT
        for chosen, multiple in ((short, BLOCK), (~short, LONG_MULTIPLE)):
            index = np.flatnonzero(chosen)
            if len(index):
                every = len(index) == len(lengths)
                self.groups.append(self._gather(index, every, blocks, lengths[index], multiple))

    def _gather(
        self,
        index: NDArray[np.int64],
        every: bool,
        blocks: Sequence[Sequence[int]],
        lengths: NDArray[np.int64],
        multiple: int,
    ) -> _Group:
        capacity = -(-(int(lengths.max()) + 1 + HEADROOM) // multiple) * multiple
        slots = np.zeros((len(index), capacity), dtype=np.int64)
        for lane, row in enumerate(index):
            filled = lengths[lane]
            slots[lane, :filled] = slots_of(blocks[row], 0, filled)
        flat = torch.from_numpy(slots.reshape(-1)).to(self.device)
        counts = torch.from_numpy(lengths).to(self.device)
        outside = torch.arange(capacity, device=self.device) >= counts[:, None]
        copies: list[torch.Tensor] = []
        for layer in range(len(self.cache.layers)):
            copy = self.cache.read(layer, flat).unflatten(0, (len(index), capacity))
            # What lies beyond a row's tokens may be anything, even NaN, and 0 * NaN is NaN.
            copies.append(copy.masked_fill_(outside[:, :, None, None, None], 0))
        mask = torch.zeros(outside.shape, dtype=copies[0].dtype, device=self.device)
        mask = mask.masked_fill_(outside, float("-inf"))[:, None, None, :]
        lanes = torch.arange(len(index), device=self.device)
        rows = None if every else torch.from_numpy(index).to(self.device)
        return _Group(rows, index, capacity, copies, mask, multiple, lanes, lanes)

    def begin(self, slots: NDArray[np.int64], lengths: NDArray[np.int64]) -> bool:
        """Prepare one step in which each row's token goes to `slots`; False if rows must be set anew."""
        self.slots = torch.from_numpy(slots).to(self.device)
        for group in self.groups:
            at = lengths[group.index]
            longest = int(at.max()) + 1
            outgrown = group.multiple == BLOCK and longest > SHORT
            if outgrown or longest > group.capacity:
                return False
            group.at = torch.from_numpy(at).to(self.device)
            group.mask[group.lane, 0, 0, group.at] = 0
            group.padded = -(-longest // group.multiple) * group.multiple
        return True

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        self.cache.write(layer, self.slots, k, v)
        if len(self.groups) == 1:
            return self._attend(layer, self.groups[0], q, k, v)
        out = torch.empty_like(q)
        for group in self.groups:
            part = [x.index_select(0, group.rows) for x in (q, k, v)]  # pyright: ignore[reportArgumentType]
            out[group.rows] = self._attend(layer, group, *part)
        return out

    def _attend(
        self, layer: int, group: _Group, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        copy = group.copies[layer]
        copy[group.lane, group.at] = torch.stack((k, v), dim=1)
        keys, values = copy[:, : group.padded].unbind(2)
        heads, kv_heads = q.shape[1], k.shape[1]
        # Query heads that share a key head are queries of it: one small product instead of several.
        query = q.reshape(len(q), kv_heads, heads // kv_heads, -1)
        mixed = F.scaled_dot_product_attention(
            query,
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=group.mask[..., : group.padded],
        )
        return mixed.reshape(q.shape)
