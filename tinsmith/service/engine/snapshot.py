"""An adapter in training as one file, exact to the bit, with checksums."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tinsmith.errors import ModelError, StorageError
from tinsmith.service.engine.backend import LoraSpec
from tinsmith.service.engine.lora import Adapter


def capture(adapter: Adapter) -> Callable[[Path], None]:
    """A copy of the adapter as it is now, as a function that writes it to a file, from any thread."""
    tensors = {
        name: buffer.detach().to("cpu", copy=True)
        for name, buffer in (
            ("values", adapter.values),
            ("moment1", adapter.moment1),
            ("moment2", adapter.moment2),
            ("gradient", adapter.gradient),
        )
        if name != "gradient" or bool(buffer.any())
    }
    steps, spec = adapter.steps, json.dumps(asdict(adapter.spec), sort_keys=True)

    def write(to: Path) -> None:
        sums = _checksums(spec, str(steps), tensors)
        metadata = {"steps": str(steps), "spec": spec, "checksums": json.dumps(sums)}
        try:
            save_file(tensors, to, metadata)
        except SafetensorError as error:
            raise StorageError(
                f"{to} could not be written: {error}; free some space there, or make it writable."
            ) from error

    return write


def read_snapshot(file: Path) -> tuple[LoraSpec, int, dict[str, torch.Tensor]]:
    """Settings, steps and buffers; a file that is not what was written is a ModelError."""
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        sums = json.loads(metadata["checksums"])
        if sums != _checksums(metadata["spec"], metadata["steps"], tensors):
            raise ValueError("its checksums do not fit")
        return LoraSpec(**json.loads(metadata["spec"])), int(metadata["steps"]), tensors
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the saved state {file} cannot be used: {error}.") from error


def restore(adapter: Adapter, file: Path) -> None:
    """Makes a fresh adapter what the file says."""
    spec, steps, tensors = read_snapshot(file)
    if spec != adapter.spec:
        raise ModelError(f"the saved state {file} belongs to another model ({spec}).")
    for name in ("values", "moment1", "moment2", "gradient"):
        if name in tensors:
            getattr(adapter, name).copy_(tensors[name])
    adapter.steps = steps


def _checksums(spec: str, steps: str, tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    sums = {
        name: zlib.crc32(tensor.numpy().view(np.uint8).data) for name, tensor in tensors.items()
    }
    return {**sums, "facts": zlib.crc32(f"{spec} {steps}".encode())}
