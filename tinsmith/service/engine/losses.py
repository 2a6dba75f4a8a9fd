"""The losses of the Tinker API, as per-token terms that are summed; one function each, one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from jaxtyping import Float

    Tokens = Float[torch.Tensor, " tokens"]

Inputs: TypeAlias = Mapping[str, torch.Tensor]
Params: TypeAlias = Mapping[str, float]
LossFn: TypeAlias = Callable[[torch.Tensor, Inputs, Params], torch.Tensor]


def cross_entropy(logprobs: Tokens, inputs: Inputs, params: Params) -> Tokens:
    """Weighted negative log-likelihood; weights may be negative or fractional, 1 when not given."""
    return -logprobs * inputs["weights"] if "weights" in inputs else -logprobs


def importance_sampling(logprobs: Tokens, inputs: Inputs, params: Params) -> Tokens:
    """-(p / q) * A, with q the policy that sampled the token."""
    return -torch.exp(logprobs - inputs["logprobs"]) * inputs["advantages"]


def ppo(logprobs: Tokens, inputs: Inputs, params: Params) -> Tokens:
    """Clipped surrogate; the thresholds bound the ratio itself (0.8 and 1.2, not an epsilon)."""
    low = params.get("clip_low_threshold", 0.8)
    high = params.get("clip_high_threshold", 1.2)
    ratio = torch.exp(logprobs - inputs["logprobs"])
    advantages = inputs["advantages"]
    return -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)


LOSSES: dict[str, LossFn] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
}
