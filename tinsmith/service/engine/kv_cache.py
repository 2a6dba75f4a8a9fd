"""A paged key-value cache: fixed blocks of token slots, shared by reference, found again by content."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from tinsmith.service.engine.model import BaseModel, DecoderConfig

if TYPE_CHECKING:
    from jaxtyping import Int

BLOCK = 16  # tokens; also keeps padded attention lengths multiples of a vector's width

Block: TypeAlias = int
# A cached block is known by the block before it and its own tokens, so equal keys mean equal
# contents and no hash can collide. Chains start at a key made of the weights' name.
Key: TypeAlias = "tuple[int | str | None, tuple[int, ...]]"


@dataclass
class BlockPool:
    """Which blocks are free, in use or kept for reuse; knows nothing of tensors.

    Invariant: a block is in exactly one of three states: free; held (references > 0); kept
    (references = 0, registered under a key, evicted oldest first when room is needed).
    Block 0 is never handed out: its slots stay zero, and padding reads them.
    """

    size: int
    free: list[Block] = field(default_factory=list)
    references: dict[Block, int] = field(default_factory=dict)
    kept: OrderedDict[Block, None] = field(default_factory=OrderedDict)
    by_key: dict[Key, Block] = field(default_factory=dict)
    key_of: dict[Block, Key] = field(default_factory=dict)
    serial_of: dict[Block, int] = field(default_factory=dict)  # names a block's content in keys
    next_serial: int = 0

    def __post_init__(self) -> None:
        self.free = list(range(self.size - 1, 0, -1))

    @property
    def available(self) -> int:
        return len(self.free) + len(self.kept)

    def take(self, count: int) -> list[Block]:
        """`count` fresh blocks; the caller has checked `available`."""
        taken: list[Block] = []
        for _ in range(count):
            block = self.free.pop() if self.free else self._evict()
            self.references[block] = 1
            taken.append(block)
        return taken

    def _evict(self) -> Block:
        block, _ = self.kept.popitem(last=False)
        del self.by_key[self.key_of.pop(block)]
        del self.serial_of[block]
        return block

    def share(self, blocks: list[Block]) -> None:
        for block in blocks:
            self.references[block] = self.references.get(block, 0) + 1
            self.kept.pop(block, None)

    def release(self, blocks: list[Block]) -> None:
        for block in blocks:
            self.references[block] -= 1
            if self.references[block] == 0:
                del self.references[block]
                if block in self.key_of:
                    self.kept[block] = None
                else:
                    self.free.append(block)

    def find(self, root: str | None, tokens: tuple[int, ...]) -> list[Block]:
        """The longest run of cached blocks that holds the start of `tokens`; not yet shared."""
        found: list[Block] = []
        parent: int | str | None = root
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            block = self.by_key.get((parent, tokens[start : start + BLOCK]))
            if block is None:
                break
            found.append(block)
            parent = self.serial_of[block]
        return found

    def register(self, root: str | None, tokens: tuple[int, ...], blocks: list[Block]) -> None:
        """Make the full blocks of `tokens` findable; a block whose content is known already is not."""
        parent: int | str | None = root
        for index in range(len(tokens) // BLOCK):
            block = blocks[index]
            key: Key = (parent, tokens[index * BLOCK : (index + 1) * BLOCK])
            known = self.by_key.get(key)
            if known is None:
                if block in self.key_of:  # its content was registered under another chain
                    return
                known = block
                self.by_key[key] = block
                self.key_of[block] = key
                self.serial_of[block] = self.next_serial
                self.next_serial += 1
            parent = self.serial_of[known]


class KVCache:
    """Keys and values of all layers in token slots; slot = block * BLOCK + offset."""

    def __init__(self, model: BaseModel, tokens: int) -> None:
        config = model.config
        self.pool = BlockPool(max(tokens // BLOCK, 2) + 1)
        shape = (self.pool.size * BLOCK, 2, config.kv_heads, config.head_dim)
        self.layers = [_zeros(shape, model.dtype, model.device) for _ in range(config.layers)]

    @staticmethod
    def bytes_per_token(config: DecoderConfig, dtype: torch.dtype) -> int:
        return config.layers * 2 * config.kv_size * dtype.itemsize

    @property
    def tokens(self) -> int:
        return self.pool.size * BLOCK

    def write(
        self, layer: int, slots: Int[torch.Tensor, " tokens"], k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Store, and return as stored: [tokens, 2, kv_heads, head_dim]."""
        stacked = torch.stack((k, v), dim=1)
        self.layers[layer][slots] = stacked
        return stacked

    def read(self, layer: int, slots: Int[torch.Tensor, " tokens"]) -> torch.Tensor:
        """[tokens, 2, kv_heads, head_dim]"""
        return self.layers[layer].index_select(0, slots)

    def copy_slots(
        self, source: Int[torch.Tensor, " tokens"], target: Int[torch.Tensor, " tokens"]
    ) -> None:
        for layer in self.layers:
            layer.index_copy_(0, target, layer.index_select(0, source))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On a CPU numpy leaves zeroed pages to the kernel, so memory is taken as blocks are first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    room = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(room).view(dtype).view(shape)
