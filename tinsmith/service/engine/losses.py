"""The losses of the Tinker API, as per-token terms that are summed; one function each, one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from jaxtyping import Float

    Tokens = Float[torch.Tensor, " tokens"]
    Cells = Float[torch.Tensor, " *tokens_or_cells"]

Inputs: TypeAlias = Mapping[str, torch.Tensor]
Params: TypeAlias = Mapping[str, float]
LossFn: TypeAlias = Callable[[torch.Tensor, Inputs, Params], torch.Tensor]

SEQUENCE_LOG_RATIO = "sequence_log_ratio"  # made here for gspo; never sent by a client


def cross_entropy(logprobs: Cells, inputs: Inputs, params: Params) -> Cells:
    """Weighted negative log-likelihood; weights may be negative or fractional, 1 when not given.

    The one loss that takes several targets a token: [tokens, K] targets with [tokens, K] weights.
    """
    return -logprobs * inputs["weights"] if "weights" in inputs else -logprobs


def importance_sampling(logprobs: Tokens, inputs: Inputs, params: Params) -> Tokens:
    """-(p / q) * A, with q the policy that sampled the token."""
    return -torch.exp(logprobs - inputs["logprobs"]) * inputs["advantages"]


def ppo(logprobs: Tokens, inputs: Inputs, params: Params) -> Tokens:
    """Clipped surrogate; the thresholds bound the ratio itself (0.8 and 1.2, not an epsilon)."""
    return _surrogate(torch.exp(logprobs - inputs["logprobs"]), inputs, params)


def cispo(logprobs: Tokens, inputs: Inputs, params: Params) -> Tokens:
    """-clip(p / q) * log p * A, where the clipped ratio is a constant: no token loses its gradient."""
    ratio = torch.exp(logprobs.detach() - inputs["logprobs"])
    return -_clip(ratio, inputs, params) * logprobs * inputs["advantages"]


def dro(logprobs: Tokens, inputs: Inputs, params: Params) -> Tokens:
    """-(log p * A - beta / 2 * (log p - log q)^2): a quadratic pull towards the sampling policy."""
    distance = logprobs - inputs["logprobs"]
    return 0.5 * params["beta"] * distance.square() - logprobs * inputs["advantages"]


def gspo(logprobs: Tokens, inputs: Inputs, params: Params) -> Tokens:
    """As ppo, with the whole sequence's mean ratio as the value of every token's ratio."""
    own = logprobs - logprobs.detach()  # zero, but carries the gradient to this token
    return _surrogate(torch.exp(inputs[SEQUENCE_LOG_RATIO] + own), inputs, params)


LOSSES: dict[str, LossFn] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "dro": dro,
    "gspo": gspo,
}


def _surrogate(ratio: Tokens, inputs: Inputs, params: Params) -> Tokens:
    advantages = inputs["advantages"]
    return -torch.minimum(ratio * advantages, _clip(ratio, inputs, params) * advantages)


def _clip(ratio: Tokens, inputs: Inputs, params: Params) -> Tokens:
    """Bounds come for each token from the inputs, or once for all from the settings."""
    low, high = (
        inputs[name] if name in inputs else params[name]
        for name in ("clip_low_threshold", "clip_high_threshold")
    )
    return ratio.clamp(min=low).clamp(max=high)


def sequence_log_ratios(logprobs: Tokens, inputs: Inputs, lengths: Sequence[int]) -> Tokens:
    """For each token, the mean of log p - log q over the masked tokens of its whole sequence."""
    counts = torch.tensor(lengths, device=logprobs.device)
    owner = torch.repeat_interleave(counts)
    mask = inputs["sequence_ratio_mask"] != 0
    distance = torch.where(mask, logprobs - inputs["logprobs"], 0.0).double()
    zeros = distance.new_zeros(len(lengths))
    total = zeros.index_add(0, owner, distance)
    return (total / zeros.index_add(0, owner, mask.double()))[owner].to(logprobs.dtype)
