"""Adapters on disk in PEFT's format (any PEFT loader reads them), with optimizer state beside."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tinsmith.errors import ModelError, StorageError
from tinsmith.service.engine.backend import LoraSpec
from tinsmith.service.engine.lora import Adapter

ADAPTER = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
OPTIMIZER = "optimizer.safetensors"
SPEC = "tinsmith.json"
_PREFIX = "base_model.model."


def save_adapter(adapter: Adapter, to: Path, *, optimizer: bool) -> None:
    """Write a checkpoint directory whole or not at all: filled beside its place, then renamed."""
    temporary = to.with_name(f".{to.name}.{uuid.uuid4().hex}")
    try:
        temporary.mkdir(parents=True)
        save_file(_peft_tensors(adapter), temporary / ADAPTER)
        (temporary / CONFIG).write_text(json.dumps(_peft_config(adapter), indent=2))
        (temporary / SPEC).write_text(json.dumps(asdict(adapter.spec), indent=2))
        if optimizer:
            state = {
                "moment1": adapter.moment1,
                "moment2": adapter.moment2,
                "steps": torch.tensor(adapter.steps),
            }
            save_file(state, temporary / OPTIMIZER)
        for file in temporary.iterdir():
            _sync(file)
        replaced = temporary.with_suffix(".old")
        if to.exists():  # a directory cannot be replaced in one move: keep the old one until then
            os.replace(to, replaced)
        os.replace(temporary, to)
        _sync(to.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise StorageError(
            f"the checkpoint could not be written to {to}: {error}. Free some disk space or check "
            "permissions, then save again; nothing half-written is left."
        ) from error


def capture_values(adapter: Adapter) -> Callable[[Path], None]:
    """A copy of the adapter's values as they are now, as a function that writes a checkpoint of them."""
    values = adapter.values.detach().to("cpu", copy=True)
    still = replace(adapter, values=values, views=adapter.split(values))
    return lambda to: save_adapter(still, to, optimizer=False)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_spec(source: Path) -> LoraSpec:
    try:
        return LoraSpec(**json.loads((source / SPEC).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{source} is not a checkpoint of this service: {error}.") from error


def load_adapter(adapter: Adapter, source: Path, *, optimizer: bool) -> None:
    """Replace an adapter's values (and moments) by a checkpoint's; the adapter is untouched on error."""
    spec = read_spec(source)
    if _shape(spec) != _shape(adapter.spec):
        raise ModelError(
            f"the checkpoint was made with {_shape(spec)}, but this model has {_shape(adapter.spec)}; "
            "create the training client with the checkpoint's settings."
        )
    values = torch.empty_like(adapter.values)
    try:
        tensors = load_file(source / ADAPTER)
        for place in adapter.sites:
            a, *bs = adapter.split(values)[place.key]
            rank = adapter.spec.rank
            for index, (module, b) in enumerate(zip(place.modules, bs, strict=True)):
                name = _PREFIX + module
                a[:, index * rank : (index + 1) * rank] = tensors[f"{name}.lora_A.weight"].t()
                b.copy_(tensors[f"{name}.lora_B.weight"].t())
        state = load_file(source / OPTIMIZER) if optimizer else None
    except (OSError, KeyError, SafetensorError, RuntimeError) as error:
        raise ModelError(f"cannot read the checkpoint in {source}: {error}.") from error
    adapter.values.copy_(values)
    adapter.gradient.zero_()
    if state is None:
        adapter.moment1.zero_()
        adapter.moment2.zero_()
        adapter.steps = 0
    else:
        adapter.moment1.copy_(state["moment1"])
        adapter.moment2.copy_(state["moment2"])
        adapter.steps = int(state["steps"])


def _shape(spec: LoraSpec) -> dict[str, Any]:
    """What must agree between a checkpoint and the adapter that takes it."""
    return {key: value for key, value in asdict(spec).items() if key != "seed"}


def _peft_tensors(adapter: Adapter) -> dict[str, torch.Tensor]:
    rank = adapter.spec.rank
    out: dict[str, torch.Tensor] = {}
    for place in adapter.sites:
        a, *bs = adapter.views[place.key]
        for index, (module, b) in enumerate(zip(place.modules, bs, strict=True)):
            part = a[:, index * rank : (index + 1) * rank]
            out[f"{_PREFIX}{module}.lora_A.weight"] = part.t().contiguous().cpu()
            out[f"{_PREFIX}{module}.lora_B.weight"] = b.t().contiguous().cpu()
    return out


def _peft_config(adapter: Adapter) -> dict[str, Any]:
    spec = adapter.spec
    modules = {module.rsplit(".", 1)[-1] for place in adapter.sites for module in place.modules}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": spec.base_model,
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "target_modules": sorted(modules),
    }
