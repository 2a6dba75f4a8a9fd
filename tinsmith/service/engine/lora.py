"""LoRA adapters: trainable ones in one flat buffer each, and frozen copies that sampling reads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tinsmith.service.engine.backend import LoraSpec
from tinsmith.service.engine.model import DecoderConfig

if TYPE_CHECKING:
    from jaxtyping import Float

    Flat = Float[torch.Tensor, " parameters"]


BLOCK_DIAGONAL_RANKS = 96
_SERIAL = itertools.count()


@dataclass(frozen=True)
class LoraPair:
    """Factors for one (possibly fused) linear layer: y += scale * (x @ a) split k ways @ bs."""

    a: Float[torch.Tensor, "inputs k_ranks"]
    bs: tuple[torch.Tensor, ...]  # k matrices [rank, outputs_i]
    scale: float


@dataclass(frozen=True)
class Site:
    """One fused linear layer that adapters attach to, and the module names it is made of."""

    key: str  # "0.qkv", "0.output", "0.gate_up", "0.down", "head"
    inputs: int
    outputs: tuple[int, ...]
    modules: tuple[str, ...]  # names in the Hugging Face model, for checkpoints


def sites(config: DecoderConfig, spec: LoraSpec) -> Iterator[Site]:
    """Every place an adapter of this kind has factors, in a fixed order."""
    for index in range(config.layers):
        at = f"model.layers.{index}"
        if spec.train_attn:
            qkv = (config.query_size, config.kv_size, config.kv_size)
            names = tuple(f"{at}.self_attn.{part}_proj" for part in "qkv")
            yield Site(f"{index}.qkv", config.hidden, qkv, names)
            names = (f"{at}.self_attn.o_proj",)
            yield Site(f"{index}.output", config.query_size, (config.hidden,), names)
        if spec.train_mlp:
            wide = config.intermediate
            names = (f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj")
            yield Site(f"{index}.gate_up", config.hidden, (wide, wide), names)
            yield Site(f"{index}.down", wide, (config.hidden,), (f"{at}.mlp.down_proj",))
    if spec.train_unembed:
        yield Site("head", config.hidden, (config.vocab_size,), ("lm_head",))


@dataclass
class FrozenAdapter:
    """What sampling reads: factors in the base model's type, by site key. Never changes."""

    spec: LoraSpec
    pairs: dict[str, LoraPair]
    # Names these very values, so that cached keys and values are never taken for another's.
    id: str = field(default_factory=lambda: f"adapter {next(_SERIAL)}")

    @property
    def bytes(self) -> int:
        return sum(x.nbytes for pair in self.pairs.values() for x in (pair.a, *pair.bs))


@dataclass
class Adapter:
    """A LoRA in training: parameters, gradient and Adam moments are flat float32 buffers."""

    spec: LoraSpec
    sites: list[Site]
    values: Flat
    gradient: Flat  # summed over passes since the last optimizer step
    moment1: Flat
    moment2: Flat
    steps: int = 0
    views: dict[str, tuple[torch.Tensor, ...]] = field(default_factory=dict)  # key -> (a, *bs)

    @classmethod
    def create(cls, config: DecoderConfig, spec: LoraSpec, device: torch.device) -> Adapter:
        places = list(sites(config, spec))
        size = sum(_site_size(place, spec.rank) for place in places)

        def zeros() -> Flat:
            return torch.zeros(size, device=device)

        adapter = cls(spec, places, zeros(), zeros(), zeros(), zeros())
        adapter.views = adapter.split(adapter.values)
        # The seed fixes the start: A uniform as PEFT's, B zero, so a new adapter changes nothing.
        generator = torch.Generator().manual_seed(spec.seed)
        for place in places:
            bound = 1 / math.sqrt(place.inputs)
            a = adapter.views[place.key][0]
            a.copy_(torch.empty(a.shape).uniform_(-bound, bound, generator=generator))
        return adapter

    @staticmethod
    def bytes_of(config: DecoderConfig, spec: LoraSpec) -> int:
        """Memory of one: values, gradient and two moments in float32."""
        return 16 * sum(_site_size(place, spec.rank) for place in sites(config, spec))

    def split(self, flat: Flat) -> dict[str, tuple[torch.Tensor, ...]]:
        """A flat buffer as its matrices: for each site A [in, k*rank], then k times B [rank, out]."""
        rank, offset = self.spec.rank, 0
        out: dict[str, tuple[torch.Tensor, ...]] = {}

        def view(*shape: int) -> torch.Tensor:
            nonlocal offset
            start, offset = offset, offset + math.prod(shape)
            return flat[start:offset].view(*shape)

        for place in self.sites:
            a = view(place.inputs, rank * len(place.outputs))
            out[place.key] = (a, *(view(rank, width) for width in place.outputs))
        return out

    @property
    def scale(self) -> float:
        return self.spec.alpha / self.spec.rank

    def trainable(self, dtype: torch.dtype) -> tuple[dict[str, LoraPair], Flat]:
        """Factors for one pass, and the flat buffer that collects the pass's gradient.

        In float32 the factors are the parameters themselves; otherwise casts of them, through which
        autograd carries the gradient back.
        """
        gradient = torch.zeros_like(self.values)
        grads = self.split(gradient)
        pairs: dict[str, LoraPair] = {}
        for key, factors in self.views.items():
            leaves = [factor.detach().requires_grad_() for factor in factors]
            for leaf, grad in zip(leaves, grads[key], strict=True):
                leaf.grad = grad
            a, *bs = [leaf.to(dtype) for leaf in leaves]
            pairs[key] = LoraPair(a, tuple(bs), self.scale)
        return pairs, gradient

    def freeze(self, dtype: torch.dtype) -> FrozenAdapter:
        copy = self.split(self.values.detach().to(dtype, copy=True))
        pairs: dict[str, LoraPair] = {}
        for key, (a, *bs) in copy.items():
            # At small ranks one product with a block-diagonal B is cheaper than several small ones.
            if a.shape[1] <= BLOCK_DIAGONAL_RANKS:
                bs = [torch.block_diag(*bs)]
            pairs[key] = LoraPair(a, tuple(bs), self.scale)
        return FrozenAdapter(self.spec, pairs)


def _site_size(place: Site, rank: int) -> int:
    return rank * (place.inputs * len(place.outputs) + sum(place.outputs))
