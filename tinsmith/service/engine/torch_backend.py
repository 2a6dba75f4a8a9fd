"""The engine: base models, their adapters in training, and sampling, on one device."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tinsmith.errors import ConfigError, RequestError, TinsmithError, one_of
from tinsmith.service.engine.backend import (
    AdamSpec,
    Finished,
    LoraSpec,
    LossSpec,
    Metrics,
    ModelId,
    ModelInfo,
    Partial,
    PassResult,
    SampleJob,
    TrainItem,
    WeightsId,
    Write,
)
from tinsmith.service.engine.lora import Adapter, FrozenAdapter
from tinsmith.service.engine.model import BaseModel
from tinsmith.service.engine.optim import adam_step
from tinsmith.service.engine.residents import Residents
from tinsmith.service.engine.snapshot import capture, read_snapshot, restore
from tinsmith.service.engine.training import training_pass
from tinsmith.service.engine.weights import (
    capture_values,
    load_adapter,
    read_spec,
    save_adapter,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ADAPTERS_PER_BASES = 4  # of memory, adapters get a fourth of what base models get
SMALL_HIDDEN = 512  # below this width, threads cost more than they give


@dataclass(frozen=True)
class _Waiting:
    """A sample whose base model does not fit beside those in use."""

    id: str
    base: str
    job: SampleJob
    adapter: FrozenAdapter | None


class TorchBackend:
    """Both a TrainBackend and a SampleBackend. Base models load when they are first asked for.

    `memory` bounds base models and their caches, in bytes; None takes a share of the machine's.
    """

    def __init__(
        self,
        device: str = "auto",
        dtype: str = "auto",
        threads: int | None = None,
        memory: int | None = None,
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
        self.residents = Residents(self.device, self.dtype, memory)
        self.bases = self.residents.loaded
        self.waiting: deque[_Waiting] = deque()
        self.pass_waits: str | None = None  # the base model that a pass has no room for yet
        self.adapters: dict[ModelId, Adapter] = {}
        self.frozen: dict[WeightsId, FrozenAdapter] = {}

    # ── base models ──────────────────────────────────────────────────────────────────────────

    def describe(self, base_model: str) -> ModelInfo:
        return self.residents.describe(base_model)

    def memory_report(self) -> dict[str, Any]:
        return self.residents.report()

    def _set_threads(self, base: BaseModel) -> None:
        threads = self.threads
        if threads is None:
            threads = 1 if base.config.hidden < SMALL_HIDDEN else os.cpu_count() or 1
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    # ── training ─────────────────────────────────────────────────────────────────────────────

    def create(self, model: ModelId, spec: LoraSpec) -> None:
        self.residents.get(spec.base_model)  # what is wrong with its weights is known early
        config = self.residents.config(spec.base_model)
        self.adapters[model] = Adapter.create(config, spec, self.device)

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
        return self._pass(adapter, items, loss, backward=backward)

    def _pass(
        self, adapter: Adapter, items: Sequence[TrainItem], loss: LossSpec, *, backward: bool
    ) -> Iterator[float | PassResult]:
        """A pass that first waits, if need be, until samples in flight leave room for its base model."""
        name = self.residents.describe(adapter.spec.base_model).name
        try:
            while (found := self.residents.get(name)) is None:
                self.pass_waits = name
                yield 0.0
        finally:
            self.pass_waits = None
        base, _ = found
        with self.residents.holding(name):
            steps = training_pass(base, adapter, items, loss, backward=backward)
            self._set_threads(base)
            for step in steps:
                yield step
                self._set_threads(base)

    def optim_step(self, model: ModelId, adam: AdamSpec) -> Metrics:
        return adam_step(self._adapter(model), adam)

    def freeze(self, model: ModelId, weights: WeightsId) -> Write:
        adapter = self._adapter(model)
        self.frozen[weights] = adapter.freeze(self.dtype)
        return capture_values(adapter)

    def save(self, model: ModelId, to: Path, *, optimizer: bool) -> None:
        save_adapter(self._adapter(model), to, optimizer=optimizer)

    def load(self, model: ModelId, source: Path, *, optimizer: bool) -> None:
        load_adapter(self._adapter(model), source, optimizer=optimizer)

    def capture(self, model: ModelId) -> Write:
        return capture(self._adapter(model))

    def check(self, source: Path) -> None:
        read_snapshot(source)

    def restore(self, model: ModelId, spec: LoraSpec, source: Path) -> None:
        adapter = Adapter.create(self.residents.config(spec.base_model), spec, self.device)
        restore(adapter, source)
        self.adapters[model] = adapter

    def adapter_bytes(self, spec: LoraSpec) -> int:
        return Adapter.bytes_of(self.residents.config(spec.base_model), spec)

    def adapter_budget(self) -> int:
        return self.residents.budget // ADAPTERS_PER_BASES

    # ── sampling ─────────────────────────────────────────────────────────────────────────────

    def load_weights(self, weights: WeightsId, base_model: str, source: Path) -> None:
        adapter = Adapter.create(self.residents.config(base_model), read_spec(source), self.device)
        load_adapter(adapter, source, optimizer=False)
        self.frozen[weights] = adapter.freeze(self.dtype)

    def drop_weights(self, weights: WeightsId) -> None:
        self.frozen.pop(weights, None)

    def weights_bytes(self, weights: WeightsId) -> int:
        return self.frozen[weights].bytes

    def add(self, job_id: str, job: SampleJob) -> None:
        adapter = None
        if job.weights is not None:
            adapter = self.frozen.get(job.weights)
            if adapter is None:
                raise RequestError(
                    f"sampler weights {job.weights!r} are not loaded; create the sampler again.",
                    status=404,
                )
        # Nobody overtakes: else a busy model would never come to rest and leave.
        name = self.residents.describe(job.base_model).name
        ahead = self.waiting or self.pass_waits not in (None, name)
        found = None if ahead else self.residents.get(name)
        if found is None:
            self.waiting.append(_Waiting(job_id, name, job, adapter))
        else:
            found[1].add(job_id, job, adapter)

    def step(self) -> list[Finished | Partial]:
        finished = self._admit_waiting()
        for base, sampler in list(self.bases.values()):
            if sampler.busy:
                self._set_threads(base)
                finished += sampler.step()
        return finished

    def _admit_waiting(self) -> list[Finished | Partial]:
        """Samples whose base model has room by now; with the first of a model come all that wait for it."""
        failed: list[Finished | Partial] = []
        while self.waiting and self.pass_waits in (None, self.waiting[0].base):
            name = self.waiting[0].base
            error: TinsmithError | None = None
            found = None
            try:
                found = self.residents.get(name)
            except TinsmithError as caught:
                error = caught
            if found is None and error is None:
                break
            ready = [item for item in self.waiting if item.base == name]
            self.waiting = deque(item for item in self.waiting if item.base != name)
            for item in ready:
                try:
                    if error is not None:
                        raise error
                    assert found is not None
                    found[1].add(item.id, item.job, item.adapter)
                except TinsmithError as caught:
                    failed.append(Finished(item.id, caught))
        return failed

    def cancel(self, job_id: str) -> None:
        self.waiting = deque(item for item in self.waiting if item.id != job_id)
        for _, sampler in self.bases.values():
            sampler.cancel(job_id)

    @property
    def sampling(self) -> bool:
        return bool(self.waiting) or any(sampler.busy for _, sampler in self.bases.values())

    @property
    def backlog(self) -> int:
        here = sum(item.job.num_samples for item in self.waiting)
        return here + sum(sampler.backlog for _, sampler in self.bases.values())


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
