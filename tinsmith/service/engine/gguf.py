"""GGUF files: the header (metadata and the list of tensors), and tensors as float32."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinsmith.errors import ModelError
from tinsmith.service.engine.gguf_quants import FORMATS, BlockFormat, dequantise

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
MAX_DIMENSIONS = 4

_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufTensor:
    name: str
    shape: tuple[int, ...]  # as in torch: the widest stride first
    format: BlockFormat
    start: int  # in the file
    size: int  # in bytes


@dataclass(frozen=True)
class GgufFile:
    """An open file; tensors are read when they are asked for."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    data: mmap.mmap = field(repr=False)
    header_size: int

    def read(self, name: str) -> NDArray[np.float32]:
        tensor = self.tensors[name]
        raw = np.frombuffer(self.data, np.uint8, tensor.size, tensor.start)
        return dequantise(raw, tensor.format).reshape(tensor.shape)


def open_gguf(path: Path) -> GgufFile:
    """Reads the header. A file that is cut short or no GGUF file at all is a ModelError."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # a ValueError says that the file is empty
        raise ModelError(f"cannot read {path}: {error}.") from error
    try:
        return _read_header(path, data)
    except (struct.error, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise ModelError(f"{path} is damaged or cut short ({error}); download it again.") from error


class _Cursor:
    """Reads values one after another; what would reach beyond the end is a struct.error."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def bytes(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise struct.error("the header goes on beyond the end of the file")
        self.at += count
        return self.data[self.at - count : self.at]

    def numbers(self, code: str, count: int = 1) -> Sequence[Any]:
        width = struct.calcsize(f"<{code}")
        return struct.unpack(f"<{count}{code}", self.bytes(width * count))

    def number(self, code: str) -> Any:
        return self.numbers(code)[0]

    def text(self) -> str:
        return self.bytes(self.number("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            of, count = self.number("I"), self.number("Q")
            if of in _NUMBERS:
                return list(self.numbers(_NUMBERS[of], count))
            return [self.value(of) for _ in range(count)]
        if kind not in _NUMBERS:
            raise ValueError(f"metadata of the unknown type {kind}")
        return self.number(_NUMBERS[kind])


def _read_header(path: Path, data: mmap.mmap) -> GgufFile:
    cursor = _Cursor(data)
    if data[:4] != MAGIC:
        raise ModelError(f"{path} is not a GGUF file: it does not begin with {MAGIC!r}.")
    cursor.at = len(MAGIC)
    version = cursor.number("I")
    if version not in VERSIONS:
        raise ModelError(
            f"{path} is GGUF version {version}; versions 2 and 3 in little-endian order are read. "
            "Convert it with a newer llama.cpp."
        )
    count, entries = cursor.numbers("Q", 2)
    metadata: dict[str, Any] = {}
    for _ in range(entries):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("I"))
    infos = [_tensor_info(cursor, path) for _ in range(count)]
    alignment = int(metadata.get("general.alignment", ALIGNMENT))
    if alignment < 1:
        raise ValueError(f"an alignment of {alignment}")
    begin = -(-cursor.at // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, block, offset in infos:
        size = prod(shape) // block.values * block.size
        if begin + offset + size > len(data):
            raise ValueError(f"the tensor {name} ends beyond the end of the file")
        tensors[name] = GgufTensor(name, shape, block, begin + offset, size)
    return GgufFile(path, metadata, tensors, data, cursor.at)


def _tensor_info(cursor: _Cursor, path: Path) -> tuple[str, tuple[int, ...], BlockFormat, int]:
    name = cursor.text()
    dimensions = cursor.number("I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ValueError(f"the tensor {name} has {dimensions} dimensions")
    shape = tuple(reversed(cursor.numbers("Q", dimensions)))
    kind, offset = cursor.number("I"), cursor.number("Q")
    block = FORMATS.get(kind)
    if block is None:
        known = ", ".join(known.name for known in FORMATS.values())
        raise ModelError(
            f"the tensor {name} of {path} has the quantisation type {kind}, which is not read; read are "
            f"{known}. Choose another file of the model, such as its Q8_0 or Q4_K_M."
        )
    if shape[-1] % block.values:
        raise ValueError(f"the tensor {name} does not consist of whole blocks")
    return name, shape, block, offset
