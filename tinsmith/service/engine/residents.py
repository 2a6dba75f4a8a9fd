"""Base models in memory: loaded on demand under one budget; the longest unused makes room for the next."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tinsmith.errors import ModelError
from tinsmith.service.engine import model as models
from tinsmith.service.engine.backend import ModelInfo
from tinsmith.service.engine.kv_cache import KVCache
from tinsmith.service.engine.memory import default_budget, give_back, in_words, weights_bytes
from tinsmith.service.engine.model import BaseModel, DecoderConfig
from tinsmith.service.engine.sampler import Sampler

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CACHE_TOKENS = 1 << 18  # more than this many cached tokens is never set aside
COMFORTABLE_TOKENS = 8192  # idle models leave for a cache of this size
LEAST_TOKENS = 2048  # with less room for its cache, a model is not loaded


class Residents:
    """Which base models are loaded.

    Invariant: weights and caches of all of them stay within the budget, and one with samples in flight or
    held by a pass is never unloaded. Adapters are tensors of their own and stay when their base goes.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, memory: int | None) -> None:
        self.device = device
        self.dtype = dtype
        self.loaded: OrderedDict[str, tuple[BaseModel, Sampler]] = OrderedDict()
        self._memory = memory
        self._held: Counter[str] = Counter()
        self._known: dict[str, tuple[ModelInfo, DecoderConfig]] = {}

    @property
    def budget(self) -> int:
        """Chosen when the first model is loaded, since free device memory is to be measured then."""
        if self._memory is None:
            self._memory = default_budget(self.device)
        return self._memory

    def describe(self, name: str) -> ModelInfo:
        return self._find(name)[0]

    def config(self, name: str) -> DecoderConfig:
        return self._find(name)[1]

    def _find(self, name: str) -> tuple[ModelInfo, DecoderConfig]:
        known = self._known.get(name)
        if known is None:
            info = models.describe(name)
            known = self._known[name] = (info, models.read_config(info.directory / "config.json"))
        return known

    def get(self, name: str) -> tuple[BaseModel, Sampler] | None:
        """A model and its sampler, loaded now if need be; None while those in use leave no room for it.

        A model that is too large even alone is a ModelError.
        """
        info, config = self._find(name)
        if info.name not in self.loaded:
            if not self._make_room(info, config):
                return None
            self.loaded[info.name] = self._load(info, config)
        self.loaded.move_to_end(info.name)
        return self.loaded[info.name]

    @contextmanager
    def holding(self, name: str) -> Iterator[None]:
        """Keep a model loaded meanwhile."""
        name = self.describe(name).name
        self._held[name] += 1
        try:
            yield
        finally:
            self._held[name] -= 1

    def report(self) -> dict[str, Any]:
        """Bytes as they are set aside; for metrics, from any thread."""
        bases = {
            name: {"weights": _weights(base), "cache": _cache(base, sampler)}
            for name, (base, sampler) in list(self.loaded.items())
        }
        return {
            "budget": self.budget,
            "weights": sum(base["weights"] for base in bases.values()),
            "cache": sum(base["cache"] for base in bases.values()),
            "bases": bases,
        }

    # ── room ─────────────────────────────────────────────────────────────────────────────────

    def _idle(self) -> list[str]:
        return [
            name
            for name, (_, sampler) in self.loaded.items()
            if not sampler.busy and not self._held[name]
        ]

    def _bytes(self, name: str) -> int:
        base, sampler = self.loaded[name]
        return _weights(base) + _cache(base, sampler)

    def _used(self) -> int:
        return sum(map(self._bytes, self.loaded))

    def _make_room(self, info: ModelInfo, config: DecoderConfig) -> bool:
        weights = weights_bytes(config, self.dtype, self.device)
        a_token = KVCache.bytes_per_token(config, self.dtype)
        least = weights + min(config.max_context, LEAST_TOKENS) * a_token
        if least > self.budget:
            raise ModelError(
                f"{info.name!r} needs {in_words(least)} ({in_words(weights)} of weights in {_name(self.dtype)} and the "
                f"smallest cache), but base models may take {in_words(self.budget)} here; choose a smaller "
                "model, or serve with more memory."
            )
        wanted = weights + min(config.max_context, COMFORTABLE_TOKENS) * a_token
        idle = self._idle()
        if self._used() - sum(map(self._bytes, idle)) + least > self.budget:
            return False
        for name in idle:
            if self._used() + wanted <= self.budget:
                break
            del self.loaded[name]
            give_back(self.device)
        return True

    def _load(self, info: ModelInfo, config: DecoderConfig) -> tuple[BaseModel, Sampler]:
        """The cache gets half of what is left, and more if one full sequence needs it."""
        left = self.budget - self._used() - weights_bytes(config, self.dtype, self.device)
        base = models.load_model(info, self.device, self.dtype)
        fits = left // KVCache.bytes_per_token(config, self.dtype)
        tokens = max(min(fits // 2, CACHE_TOKENS), min(fits, config.max_context))
        return base, Sampler(base, tokens, _decoder_of(info))


def _weights(base: BaseModel) -> int:
    return weights_bytes(base.config, base.dtype, base.device)


def _cache(base: BaseModel, sampler: Sampler) -> int:
    return sampler.cache.tokens * KVCache.bytes_per_token(base.config, base.dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
