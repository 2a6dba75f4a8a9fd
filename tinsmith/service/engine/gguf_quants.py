"""The block formats of GGUF tensors, turned into float32 with numpy.

Written here instead of using the `gguf` package: these lines are all of it that is needed, and a model
server then needs nothing that torch does not bring. That package is the oracle of the tests.

Each function takes whole blocks as bytes, [blocks, bytes], and gives their values, [blocks, values].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[Any]  # uint8, which the types of shifts lose
Floats: TypeAlias = NDArray[np.float32]

CHUNK_VALUES = 1 << 22  # values turned at once, so that what lies between stays small


def _halves(raw: Bytes) -> Floats:
    """float16 numbers, [blocks, n]."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _f32(raw: Bytes) -> Floats:
    return raw.view(np.float32)


def _bf16(raw: Bytes) -> Floats:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


# ── blocks of 32: a scale, perhaps an offset, 4 to 8 bits a value ────────────────────────────


def _nibbles(raw: Bytes) -> Bytes:
    """The low halves of all bytes, then the high halves."""
    return np.concatenate((raw & 15, raw >> 4), axis=-1)


def _fifth_bits(raw: Bytes) -> Bytes:
    return np.unpackbits(np.ascontiguousarray(raw), axis=-1, bitorder="little") << 4


def _q4_0(raw: Bytes) -> Floats:
    return (_nibbles(raw[:, 2:]).astype(np.float32) - 8) * _halves(raw[:, :2])


def _q4_1(raw: Bytes) -> Floats:
    scale, offset = np.split(_halves(raw[:, :4]), 2, axis=1)
    return _nibbles(raw[:, 4:]).astype(np.float32) * scale + offset


def _q5_0(raw: Bytes) -> Floats:
    values = (_nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])).astype(np.float32)
    return (values - 16) * _halves(raw[:, :2])


def _q5_1(raw: Bytes) -> Floats:
    scale, offset = np.split(_halves(raw[:, :4]), 2, axis=1)
    values = (_nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])).astype(np.float32)
    return values * scale + offset


def _q8_0(raw: Bytes) -> Floats:
    return raw[:, 2:].view(np.int8).astype(np.float32) * _halves(raw[:, :2])


# ── blocks of 256: groups of 16 or 32 with small scales of their own ─────────────────────────


def _bit_planes(raw: Bytes, bits: int, width: int) -> Bytes:
    """Runs of `width` bytes, each read 8 / bits times, the lowest bits first: [blocks, runs, reads, width]."""
    runs = raw.reshape(len(raw), -1, 1, width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    return (runs >> shifts) & ((1 << bits) - 1)


def _grouped(values: NDArray[np.float32], scale: Floats, offset: Floats | None = None) -> Floats:
    """values * scale - offset, where each group of neighbours has its own scale."""
    groups = scale.shape[1]
    out = values.reshape(len(values), groups, -1) * scale[:, :, None]
    if offset is not None:
        out -= offset[:, :, None]
    return out.reshape(len(values), -1)


def _q2_k(raw: Bytes) -> Floats:
    small, packed = raw[:, :16], raw[:, 16:80]
    scale, offset = np.split(_halves(raw[:, 80:84]), 2, axis=1)
    values = _bit_planes(packed, 2, 32).astype(np.float32)
    return _grouped(values, scale * (small & 15), offset * (small >> 4))


def _q3_k(raw: Bytes) -> Floats:
    high, packed, small = raw[:, :32], raw[:, 32:96], raw[:, 96:108]
    low = _bit_planes(packed, 2, 32).reshape(len(raw), -1)
    third = _bit_planes(high, 1, 32).reshape(len(raw), -1)
    values = (low | (third << 2)).astype(np.float32) - 4
    scales = _nibbles(small[:, :8]) | (_bit_planes(small[:, 8:], 2, 4).reshape(-1, 16) << 4)
    return _grouped(values, _halves(raw[:, 108:]) * (scales.astype(np.float32) - 32))


def _scales_and_offsets(raw: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight offsets of six bits each, from two float16 factors and twelve bytes."""
    factor, offset_factor = np.split(_halves(raw[:, :4]), 2, axis=1)
    first, second, third = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=1)
    offsets = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=1)
    return factor * scales, offset_factor * offsets


def _q4_k(raw: Bytes) -> Floats:
    scale, offset = _scales_and_offsets(raw)
    return _grouped(_bit_planes(raw[:, 16:], 4, 32).astype(np.float32), scale, offset)


def _q5_k(raw: Bytes) -> Floats:
    scale, offset = _scales_and_offsets(raw)
    low = _bit_planes(raw[:, 48:], 4, 32).reshape(len(raw), -1)
    fifth = _bit_planes(raw[:, 16:48], 1, 32).reshape(len(raw), -1)
    return _grouped((low | (fifth << 4)).astype(np.float32), scale, offset)


def _q6_k(raw: Bytes) -> Floats:
    low = _bit_planes(raw[:, :128], 4, 64).reshape(len(raw), -1)
    high = _bit_planes(raw[:, 128:192], 2, 32).reshape(len(raw), -1)
    scale = _halves(raw[:, 208:]) * raw[:, 192:208].view(np.int8).astype(np.float32)
    return _grouped((low | (high << 4)).astype(np.float32) - 32, scale)


# ── the table ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class BlockFormat:
    name: str
    values: int  # in a block
    size: int  # of a block, in bytes
    read: Callable[[Bytes], Floats]


FORMATS: dict[int, BlockFormat] = {
    0: BlockFormat("F32", 1, 4, _f32),
    1: BlockFormat("F16", 1, 2, _halves),
    2: BlockFormat("Q4_0", 32, 18, _q4_0),
    3: BlockFormat("Q4_1", 32, 20, _q4_1),
    6: BlockFormat("Q5_0", 32, 22, _q5_0),
    7: BlockFormat("Q5_1", 32, 24, _q5_1),
    8: BlockFormat("Q8_0", 32, 34, _q8_0),
    10: BlockFormat("Q2_K", 256, 84, _q2_k),
    11: BlockFormat("Q3_K", 256, 110, _q3_k),
    12: BlockFormat("Q4_K", 256, 144, _q4_k),
    13: BlockFormat("Q5_K", 256, 176, _q5_k),
    14: BlockFormat("Q6_K", 256, 210, _q6_k),
    30: BlockFormat("BF16", 1, 2, _bf16),
}


def dequantise(raw: Bytes, block: BlockFormat) -> Floats:
    """All values of a tensor, flat."""
    blocks = raw.reshape(-1, block.size)
    out = np.empty((len(blocks), block.values), dtype=np.float32)
    step = CHUNK_VALUES // block.values
    for start in range(0, len(blocks), step):
        out[start : start + step] = block.read(blocks[start : start + step])
    return out.reshape(-1)
