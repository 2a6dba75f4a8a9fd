"""The engine: base models, their adapters in training, and sampling, on one device."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tinsmith.errors import ConfigError, ModelError, RequestError, one_of
from tinsmith.service.engine import model as models
from tinsmith.service.engine.backend import (
    AdamSpec,
    Finished,
    LoraSpec,
    LossSpec,
    Metrics,
    ModelId,
    ModelInfo,
    PassResult,
    SampleJob,
    TrainItem,
    WeightsId,
)
from tinsmith.service.engine.kv_cache import KVCache
from tinsmith.service.engine.lora import Adapter, FrozenAdapter
from tinsmith.service.engine.model import BaseModel
from tinsmith.service.engine.optim import adam_step
from tinsmith.service.engine.sampler import Sampler
from tinsmith.service.engine.training import training_pass
from tinsmith.service.engine.weights import load_adapter, read_spec, save_adapter

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CACHE_TOKENS = 1 << 18  # more than this many cached tokens is never set aside
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SMALL_HIDDEN = 512  # below this width, threads cost more than they give


class TorchBackend:
    """Both a TrainBackend and a SampleBackend. Base models load when they are first asked for."""

    def __init__(
        self, device: str = "auto", dtype: str = "auto", threads: int | None = None
    ) -> None:
        self.device = _device(device)
        on_cpu = self.device.type == "cpu"
        usual = "float32" if on_cpu else "bfloat16"
        if dtype not in ("auto", *DTYPES):
            raise ConfigError(one_of("dtype", dtype, ["auto", *DTYPES]))
        self.dtype = DTYPES[usual if dtype == "auto" else dtype]
        self.threads = threads
        if on_cpu:
            _keep_freed_memory()
        self.bases: dict[str, tuple[BaseModel, Sampler]] = {}
        self.adapters: dict[ModelId, Adapter] = {}
        self.frozen: dict[WeightsId, FrozenAdapter] = {}

    # ── base models ──────────────────────────────────────────────────────────────────────────

    def describe(self, base_model: str) -> ModelInfo:
        return models.describe(base_model)

    def _base(self, name: str) -> tuple[BaseModel, Sampler]:
        if name not in self.bases:
            info = models.describe(name)
            self._set_threads(models.read_config(info.directory / "config.json").hidden)
            base = models.load_model(info, self.device, self.dtype)
            self.bases[name] = (base, Sampler(base, self._cache_tokens(base), _decoder_of(info)))
        return self.bases[name]

    def _set_threads(self, hidden: int) -> None:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        elif not self.bases:
            torch.set_num_threads(1 if hidden < SMALL_HIDDEN else os.cpu_count() or 1)

    def _cache_tokens(self, base: BaseModel) -> int:
        """A share of the memory, but room for at least one sequence of full length."""
        if self.device.type == "cuda":
            room = torch.cuda.mem_get_info(self.device)[0] * 0.4
        else:
            room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 0.1
        fits = int(room / KVCache.bytes_per_token(base))
        return max(min(fits, CACHE_TOKENS), base.config.max_context)

    # ── training ─────────────────────────────────────────────────────────────────────────────

    def create(self, model: ModelId, spec: LoraSpec) -> None:
        base, _ = self._base(spec.base_model)
        self.adapters[model] = Adapter.create(base.config, spec, self.device)

    def drop(self, model: ModelId) -> None:
        self.adapters.pop(model, None)

    def _adapter(self, model: ModelId) -> Adapter:
        if model not in self.adapters:
            raise RequestError(f"model {model!r} is not loaded; create it again.", status=404)
        return self.adapters[model]

    def run_pass(
        self, model: ModelId, items: Sequence[TrainItem], loss: LossSpec, *, backward: bool
    ) -> Iterator[float | PassResult]:
        adapter = self._adapter(model)
        base, _ = self._base(adapter.spec.base_model)
        return training_pass(base, adapter, items, loss, backward=backward)

    def optim_step(self, model: ModelId, adam: AdamSpec) -> Metrics:
        return adam_step(self._adapter(model), adam)

    def freeze(self, model: ModelId, weights: WeightsId) -> None:
        self.frozen[weights] = self._adapter(model).freeze(self.dtype)

    def save(self, model: ModelId, to: Path, *, optimizer: bool) -> None:
        save_adapter(self._adapter(model), to, optimizer=optimizer)

    def load(self, model: ModelId, source: Path, *, optimizer: bool) -> None:
        load_adapter(self._adapter(model), source, optimizer=optimizer)

    # ── sampling ─────────────────────────────────────────────────────────────────────────────

    def load_weights(self, weights: WeightsId, base_model: str, source: Path) -> None:
        base, _ = self._base(base_model)
        adapter = Adapter.create(base.config, read_spec(source), self.device)
        load_adapter(adapter, source, optimizer=False)
        self.frozen[weights] = adapter.freeze(self.dtype)

    def drop_weights(self, weights: WeightsId) -> None:
        self.frozen.pop(weights, None)

    def add(self, job_id: str, job: SampleJob) -> None:
        _, sampler = self._base(job.base_model)
        adapter = None
        if job.weights is not None:
            adapter = self.frozen.get(job.weights)
            if adapter is None:
                raise RequestError(
                    f"sampler weights {job.weights!r} are not loaded; create the sampler again.",
                    status=404,
                )
        sampler.add(job_id, job, adapter)

    def step(self) -> list[Finished]:
        return [
            done for _, sampler in self.bases.values() if sampler.busy for done in sampler.step()
        ]

    def cancel(self, job_id: str) -> None:
        for _, sampler in self.bases.values():
            sampler.cancel(job_id)

    @property
    def sampling(self) -> bool:
        return any(sampler.busy for _, sampler in self.bases.values())


def _device(name: str) -> torch.device:
    cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(one_of("device", name, ["auto", "cpu", "cuda"]))
    if name == "cuda" and not cuda:
        raise ConfigError("device is cuda, but torch finds no CUDA device here; use cpu or auto.")
    return torch.device(name)


def _keep_freed_memory() -> None:
    """Have glibc keep large blocks that are freed: a pass allocates the same sizes again and again, and
    asking the kernel for fresh zeroed pages each time costs about a sixth of the pass."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in every C library
    if mallopt is not None:
        arena_max, mmap_threshold, trim_threshold = -8, -3, -1
        mallopt(arena_max, 1)  # the worker thread's own arena would give back, too
        mallopt(mmap_threshold, 1 << 30)
        mallopt(trim_threshold, (1 << 31) - 1)


def _decoder_of(info: ModelInfo) -> Callable[[list[int]], str]:
    """Text of tokens, for stop strings; the tokenizer loads when the first one is asked for."""
    loaded: list[Tokenizer] = []

    def decode(tokens: list[int]) -> str:
        if not loaded:
            from tokenizers import Tokenizer

            file = info.directory / "tokenizer.json"
            if not file.is_file():
                raise ModelError(
                    f"{info.name!r} has no tokenizer.json, so stop strings cannot be found; use stop token ids."
                )
            loaded.append(Tokenizer.from_file(str(file)))
        return loaded[0].decode(tokens, skip_special_tokens=False)

    return decode
