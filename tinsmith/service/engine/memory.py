"""How much memory base models may take: what the machine has, and what a model needs."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import torch

from tinsmith.service.engine.model import DecoderConfig

# Of all memory, for base models and their caches; the rest is for adapters, activations and everyone else.
CPU_SHARE = 0.5
CUDA_SHARE = 0.7  # of what is free on the device


def default_budget(device: torch.device) -> int:
    """Bytes for base models and their caches on this machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * CUDA_SHARE)
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(physical, cgroup_limit() or physical) * CPU_SHARE)


def cgroup_limit(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """The tightest limit that the control groups of this process set; None where there is none."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    limits: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        # In a container the path may be the host's; the group's own files are then at the top.
        group = top / path.lstrip("/")
        for place in (group, *group.parents):
            if place.is_relative_to(top):
                limits += _limit(place / name)
    return min(limits, default=None)


def _limit(file: Path) -> list[int]:
    try:
        return [int(file.read_text())]
    except (OSError, ValueError):  # not there, or "max"
        return []


def weights_bytes(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Memory of a base model's weights as `load_model` lays them out."""
    hidden, wide = config.hidden, config.intermediate
    qkv = config.query_size + 2 * config.kv_size
    a_layer = hidden * (2 + qkv + config.query_size + 3 * wide) + qkv + hidden
    tables = 1 if config.tied and device.type != "cpu" else 2  # a CPU gets a head in its own layout
    rope = 2 * config.max_context * config.head_dim
    values = config.layers * a_layer + tables * config.vocab_size * hidden + hidden + rope
    return values * dtype.itemsize


def give_back(device: torch.device) -> None:
    """Return memory that was freed to the machine; allocators would keep it for later."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not in every C library
    if trim is not None:
        trim(0)


def in_words(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
