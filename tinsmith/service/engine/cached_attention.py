"""Attention against the paged cache: prompts when they arrive, then one token a row a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from tinsmith.service.engine.kv_cache import BLOCK, KVCache

# A row's numbers must not depend on its company, to the last bit on a CPU. Torch's kernel there takes
# keys 512 at a time, MKL sums products of more than 384 in two parts and takes another path for few
# rows. So queries are padded to multiples of 32, spans of a prompt are fixed by position, and in
# decoding short and long rows are kept apart, each padded to a fixed multiple.
QUERY_MULTIPLE = 32
CPU_SPAN = 128
GPU_SPAN = 2048  # bounds the attention mask; the bits are not promised there
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
    """Packed prompts, each against its own cached start and itself.

    On a CPU a token is always computed among the same span of queries against the same span of keys,
    whatever prompt it stands in and however much of that was cached, so the cache holds the very
    bits that a computation from the first token would give.
    """

    def __init__(self, cache: KVCache, parts: Sequence[PromptPart], device: torch.device) -> None:
        self.cache, self.device = cache, device
        self.span = CPU_SPAN if device.type == "cpu" else GPU_SPAN
        slots = [slots_of(part.blocks, part.cached, part.length) for part in parts]
        self.slots = torch.from_numpy(np.concatenate(slots)).to(device)
        self.runs: list[list[PromptPart]] = []  # neighbours of the same shape go as one batch
        for part in parts:
            last = self.runs[-1][-1] if self.runs else None
            if last and (last.cached, last.length) == (part.cached, part.length):
                self.runs[-1].append(part)
            else:
                self.runs.append([part])
        self.reads = [self._slots_of_run(run) if run[0].cached else None for run in self.runs]

    def _slots_of_run(self, run: Sequence[PromptPart]) -> torch.Tensor:
        slots = np.concatenate([slots_of(part.blocks, 0, part.length) for part in run])
        return torch.from_numpy(slots).to(self.device)

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        self.cache.write(layer, self.slots, k, v)
        outs: list[torch.Tensor] = []
        start = 0
        for run, reads in zip(self.runs, self.reads, strict=True):
            rows = slice(start, start + len(run) * run[0].new)
            if reads is None:
                keys, values = k[rows], v[rows]
            else:
                keys, values = self.cache.read(layer, reads).unbind(1)
            outs.append(self._attend(run, q[rows], keys, values))
            start = rows.stop
        return torch.cat(outs)

    def _attend(
        self, run: Sequence[PromptPart], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        cached, length = run[0].cached, run[0].length
        query = q.unflatten(0, (len(run), -1)).transpose(1, 2)
        spans = range(cached // self.span, -(-length // self.span))
        room = _padded(length) if length <= SHORT else spans.stop * self.span
        keys, values = (_with_room(x, len(run), room) for x in (k, v))
        outs: list[torch.Tensor] = []
        for span in spans:
            first, last = max(cached, span * self.span), min(length, (span + 1) * self.span)
            some = query[:, :, first - cached : last - cached]
            some = F.pad(some, (0, 0, 0, -(last - first) % QUERY_MULTIPLE))
            width = min(room, (span + 1) * self.span)
            positions = torch.arange(first, first + some.shape[2], device=self.device)
            seen = torch.arange(width, device=self.device) <= positions[:, None]
            mixed = F.scaled_dot_product_attention(
                some, keys[:, :, :width], values[:, :, :width], attn_mask=seen, enable_gqa=True
            )
            outs.append(mixed[:, :, : last - first])
        return torch.cat(outs, dim=2).transpose(1, 2).flatten(0, 1)


def _padded(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


def _with_room(x: torch.Tensor, count: int, room: int) -> torch.Tensor:
    """[count * length, heads, dim] as [count, heads, room, dim], zero beyond the length."""
    x = x.unflatten(0, (count, -1))
    return F.pad(x, (0, 0, 0, 0, 0, room - x.shape[1])).transpose(1, 2)


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
    seen: torch.Tensor | None = None  # the mask's part for this step


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
        # Beyond its tokens a row reads slot 0, which nobody writes: zeros, where a block that was in
        # use before might hold anything, even NaN, and 0 * NaN is NaN.
        slots = np.zeros((len(index), capacity), dtype=np.int64)
        for lane, row in enumerate(index):
            filled = lengths[lane]
            slots[lane, :filled] = slots_of(blocks[row], 0, filled)
        flat = torch.from_numpy(slots.reshape(-1)).to(self.device)
        counts = torch.from_numpy(lengths).to(self.device)
        outside = torch.arange(capacity, device=self.device) >= counts[:, None]
        layers = range(len(self.cache.layers))
        shape = (len(index), capacity)
        copies = [self.cache.read(layer, flat).unflatten(0, shape) for layer in layers]
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
            group.seen = group.mask[..., : group.padded]
        return True

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        kv = self.cache.write(layer, self.slots, k, v)
        if len(self.groups) == 1:
            return self._attend(layer, self.groups[0], q, kv)
        out = torch.empty_like(q)
        for group in self.groups:
            assert group.rows is not None
            out[group.rows] = self._attend(layer, group, q[group.rows], kv[group.rows])
        return out

    def _attend(self, layer: int, group: _Group, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        copy = group.copies[layer]
        copy[group.lane, group.at] = kv
        keys, values = copy[:, : group.padded].transpose(1, 3).unbind(2)
        # Query heads that share a key head are queries of it: one small product instead of several.
        query = q.reshape(q.shape[0], kv.shape[2], -1, q.shape[2])
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=group.seen)
        return mixed.reshape(q.shape)
