"""Tensors on the wire, dense or compressed sparse rows, to dense numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinsmith.errors import RequestError

# Sparse tensors are stored densely; a small request must not ask for all memory.
MAX_DENSE_ELEMENTS = 64_000_000

FLOAT32, INT64, INT32, BFLOAT16 = "float32", "int64", "int32", "bfloat16"
_STORED: dict[str, Any] = {FLOAT32: "<f4", INT64: "<i8", INT32: "<i4", BFLOAT16: "<u2"}


def from_bytes(data: bytes, dtype: str, where: str) -> NDArray[Any]:
    """The flat array in `data`; int32 and bfloat16 are widened to int64 and float32."""
    stored = np.dtype(_STORED[dtype])
    if len(data) % stored.itemsize:
        raise RequestError(f"{where}: {len(data)} bytes are not a whole number of {dtype} values.")
    flat: NDArray[Any] = np.frombuffer(data, dtype=stored)
    if dtype == BFLOAT16:
        return (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.astype(np.int64) if dtype == INT32 else flat


def dense(data: bytes, dtype: str, shape: Sequence[int], where: str) -> NDArray[Any]:
    """A dense tensor; without a shape it is one-dimensional."""
    flat = from_bytes(data, dtype, where)
    if not shape:
        return flat
    if any(size < 0 for size in shape) or prod(shape) != flat.size:
        raise RequestError(f"{where}: shape {list(shape)} does not hold {flat.size} values.")
    return flat.reshape(tuple(shape))


def sparse(
    values: bytes,
    crow: bytes,
    col: bytes,
    dtype: str,
    shape: Sequence[int],
    where: str,
    pad: int = 0,
) -> NDArray[Any]:
    """A two-dimensional tensor in compressed sparse rows; cells that are not listed hold `pad`."""
    if len(shape) != 2 or any(size < 0 for size in shape):
        raise RequestError(f"{where}: a sparse tensor needs a shape [rows, columns].")
    rows, columns = shape
    if rows * columns > MAX_DENSE_ELEMENTS:
        raise RequestError(
            f"{where}: {rows} x {columns} cells are more than the {MAX_DENSE_ELEMENTS} allowed."
        )
    cells = from_bytes(values, dtype, where)
    crow_indices = from_bytes(crow, INT64, where)
    col_indices = from_bytes(col, INT64, where)
    counts = np.diff(crow_indices)
    if (
        crow_indices.size != rows + 1
        or crow_indices[0] != 0
        or crow_indices[-1] != cells.size
        or (counts < 0).any()
        or col_indices.size != cells.size
        or (cells.size and not (col_indices.min() >= 0 and col_indices.max() < columns))
    ):
        raise RequestError(f"{where}: the sparse indices do not fit shape {list(shape)}.")
    full = np.full((rows, columns), pad, dtype=cells.dtype)
    full[np.repeat(np.arange(rows), counts), col_indices] = cells
    return full
