"""Which adapters are in memory, within a budget; the others are parked on disk and come back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from tinsmith.errors import ModelError
from tinsmith.service.engine.backend import Backend, LoraSpec, ModelId, WeightsId
from tinsmith.service.keeper import Keeper


@dataclass
class _Model:
    """A model in training, in memory or parked."""

    spec: LoraSpec
    size: int
    position: int = -1  # number of the last op carried out
    unkept_seconds: float = 0.0  # of work since its state was put on disk
    stored: Future[None] | None = None  # resolves when the answers up to here are stored


class Parking:
    """Of the worker's thread alone. Least recently used go first; what is in use never does."""

    def __init__(
        self,
        backend: Backend,
        keeper: Keeper,
        budget: int,
        weights_in_use: Callable[[], set[WeightsId | None]],
    ) -> None:
        self._backend = backend
        self._keeper = keeper
        self._budget = budget
        self._weights_in_use = weights_in_use
        self._models: dict[ModelId, _Model] = {}
        self._in_memory: OrderedDict[ModelId, None] = OrderedDict()
        self._working: ModelId | None = None  # last asked for: an op of it may be under way
        self._weights: OrderedDict[WeightsId, tuple[int, Path]] = (
            OrderedDict()
        )  # size, place on disk

    def counts(self) -> dict[str, int]:
        models, in_memory = len(self._models), len(self._in_memory)
        return {
            "models_resident": in_memory,
            "models_parked": models - in_memory,
            "weights_resident": len(self._weights),
        }

    # models

    def park(self, model: ModelId, spec: LoraSpec, position: int) -> None:
        """A model of an earlier process, on disk as it was after this op."""
        self._models[model] = _Model(spec, self._backend.adapter_bytes(spec), position)

    def create(self, model: ModelId, spec: LoraSpec) -> None:
        self._working = model
        size = self._backend.adapter_bytes(spec)
        self._make_room(size)
        self._backend.create(model, spec)
        self._models[model] = _Model(spec, size)
        self._in_memory[model] = None

    def has(self, model: ModelId) -> bool:
        return model in self._in_memory

    def need(self, model: ModelId) -> None:
        """Sees to it that a model is in memory, and stays there until another one is asked for."""
        self._working = model
        if model not in self._in_memory:
            known = self._models.get(model)
            states = self._keeper.shelf.states(model)
            if known is None or not states or states[0][0] != known.position:
                raise ModelError(f"the weights of {model} are neither in memory nor on disk.")
            self._make_room(known.size)
            self._backend.restore(model, known.spec, states[0][1])
            self._in_memory[model] = None
        self._in_memory.move_to_end(model)

    def reached(
        self, model: ModelId, seq_id: int, seconds: float, stored: Future[None] | None
    ) -> None:
        """The model's op with this number was carried out."""
        if model in self._in_memory:
            known = self._models[model]
            known.position = seq_id
            known.unkept_seconds += seconds
            known.stored = stored

    def drop(self, model: ModelId, samplers: Iterable[WeightsId]) -> None:
        if self._models.pop(model, None) is not None:
            self._in_memory.pop(model, None)
            self._backend.drop(model)
        for weights in samplers:
            if self._weights.pop(weights, None) is not None:
                self._backend.drop_weights(weights)
        self._keeper.drop(model, samplers)

    # putting models on disk

    def keep_if_due(self, model: ModelId) -> None:
        known = self._models[model]
        if self._keeper.is_due(model, known.unkept_seconds):
            self._keep(model, known, known.stored)

    def keep_now(self, model: ModelId, seq_id: int) -> None:
        """On disk when this returns, unless the disk refuses (the keeper says so)."""
        known = self._models[model]
        known.position = seq_id
        self._keep(model, known, None)
        self._keeper.flush()

    def keep_all(self) -> None:
        for model in self._in_memory:
            known = self._models[model]
            if known.position > self._keeper.kept(model):
                self._keep(model, known, known.stored)

    def _keep(self, model: ModelId, known: _Model, stored: Future[None] | None) -> None:
        self._keeper.keep(model, known.position, self._backend.capture(model), stored)
        known.unkept_seconds = 0.0

    # weights that sampling reads

    def freeze(self, model: ModelId, sampler: WeightsId) -> None:
        """A copy of the model for a sampler; one that is on disk since before a restart stays as it is."""
        if self._keeper.has_copy(sampler):
            return
        self._make_room(self._models[model].size // 4)
        write = self._backend.freeze(model, sampler)
        source = self._keeper.shelf.copy(sampler)
        self._weights[sampler] = (self._backend.weights_bytes(sampler), source)
        self._keeper.keep_copy(model, sampler, write)

    def find_weights(self, weights: WeightsId, base_model: str, source: Path | None) -> bool:
        """Sees to it that weights are in memory; False when they are nowhere."""
        self._keeper.has_copy(weights)  # used, so it goes last
        if weights in self._weights:
            self._weights.move_to_end(weights)
            return True
        if source is None or not source.is_dir():
            return False
        self._make_room(sum(file.stat().st_size for file in source.iterdir()))
        self._backend.load_weights(weights, base_model, source)
        self._weights[weights] = (self._backend.weights_bytes(weights), source)
        return True

    # room

    def _make_room(self, size: int) -> None:
        """Lets go of sampling weights that are on disk, then parks models; as far as it goes."""
        in_use = self._weights_in_use()
        for weights, (_, source) in list(self._weights.items()):
            if self._taken() + size <= self._budget:
                return
            if weights not in in_use and source.is_dir():
                self._backend.drop_weights(weights)
                del self._weights[weights]
        for model in list(self._in_memory):
            if self._taken() + size <= self._budget:
                return
            if model == self._working:
                continue
            known = self._models[model]
            if known.position > self._keeper.kept(model):
                self._keep(model, known, known.stored)
                self._keeper.flush()
            if known.position == self._keeper.kept(model):
                self._backend.drop(model)
                del self._in_memory[model]

    def _taken(self) -> int:
        models = sum(self._models[model].size for model in self._in_memory)
        return models + sum(size for size, _ in self._weights.values())
