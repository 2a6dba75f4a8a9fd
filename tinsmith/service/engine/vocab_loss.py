"""Log-probabilities and loss over the vocabulary, a chunk of tokens at a time, with their gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from tinsmith.service.engine.layers import plain_linear
from tinsmith.service.engine.lora import LoraPair
from tinsmith.service.engine.losses import Inputs, LossFn, Params
from tinsmith.service.engine.model import LinearWeights

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# Logits of one chunk: on a CPU few enough to stay near the cache, but rows enough for a matrix product.
CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 28}
CHUNK_ROWS = 256


def _logits(hidden: torch.Tensor, head: LinearWeights, pair: LoraPair | None) -> torch.Tensor:
    out = plain_linear(hidden, head)
    if pair is not None:
        out.addmm_(hidden @ pair.a, pair.bs[0], alpha=pair.scale)
    return out


def _rows_per_chunk(head: LinearWeights) -> int:
    return max(CHUNK_ROWS, CHUNK_ELEMENTS[head.weight.device.type] // head.weight.shape[1])


def logits_in_chunks(
    hidden: Float[torch.Tensor, "tokens hidden"], head: LinearWeights, pair: LoraPair | None
) -> Iterator[tuple[slice, Float[torch.Tensor, "rows vocab"]]]:
    """Rows and their float32 logits; all logits together would not fit."""
    rows = _rows_per_chunk(head)
    for start in range(0, len(hidden), rows):
        part = slice(start, start + rows)
        yield part, _logits(hidden[part], head, pair).float()


def token_logprobs(
    hidden: Float[torch.Tensor, "tokens hidden"],
    targets: Int[torch.Tensor, "tokens ..."],
    head: LinearWeights,
    pair: LoraPair | None,
) -> Float[torch.Tensor, "tokens ..."]:
    """log p(target) for each row (and each of its K targets), without gradient."""
    out = [
        _chosen(logits, targets[part], torch.logsumexp(logits, dim=1))
        for part, logits in logits_in_chunks(hidden, head, pair)
    ]
    return torch.cat(out)


def _chosen(logits: torch.Tensor, targets: torch.Tensor, normaliser: torch.Tensor) -> torch.Tensor:
    if targets.ndim == 1:
        return logits.gather(1, targets[:, None])[:, 0] - normaliser
    return logits.gather(1, targets) - normaliser[:, None]


class VocabLoss(torch.autograd.Function):
    """The summed loss of `loss_fn`. The forward also makes the gradient while a chunk's logits exist,
    so the logits of all tokens never do; losses here depend on each token's own log-probabilities.
    What a loss needs of a whole sequence (gspo) is among its inputs already."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        head: LinearWeights,
        loss_fn: LossFn,
        params: Params,
        inputs: Inputs,
        scale: float,
        *factors: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pair = LoraPair(factors[0], factors[1:], scale) if factors else None
        grad_hidden = torch.zeros_like(hidden)
        grad_factors = [torch.zeros_like(factor, dtype=torch.float32) for factor in factors]
        total = hidden.new_zeros((), dtype=torch.float64)
        logprobs: list[torch.Tensor] = []
        for part, logits in logits_in_chunks(hidden, head, pair):
            normaliser = torch.logsumexp(logits, dim=1)
            targets = inputs["target_tokens"][part]
            chosen = _chosen(logits, targets, normaliser)
            logprobs.append(chosen)
            with torch.enable_grad():
                leaf = chosen.detach().requires_grad_()
                terms = loss_fn(leaf, {name: x[part] for name, x in inputs.items()}, params)
                (slope,) = torch.autograd.grad(terms.sum(), leaf)
            total += terms.detach().double().sum()
            wide = (len(targets), -1)  # one column when each token has one target
            grad_hidden[part] = _chunk_gradient(
                hidden[part],
                logits,
                normaliser,
                targets.reshape(wide),
                slope.reshape(wide),
                head,
                pair,
                grad_factors,
            )
        ctx.save_for_backward(grad_hidden, *grad_factors)
        outputs = torch.cat(logprobs)
        ctx.mark_non_differentiable(outputs)
        return total, outputs

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[Any, ...]:
        # The loss is the root of the graph, so its own gradient is 1 and the stored ones are the answer.
        grad_hidden, *grad_factors = ctx.saved_tensors
        return grad_hidden, None, None, None, None, None, *grad_factors


def _chunk_gradient(
    hidden: torch.Tensor,
    logits: torch.Tensor,
    normaliser: torch.Tensor,
    targets: torch.Tensor,
    slope: torch.Tensor,
    head: LinearWeights,
    pair: LoraPair | None,
    grad_factors: list[torch.Tensor],
) -> torch.Tensor:
    """d loss / d hidden for one chunk; adds to the gradients of the head's adapter."""
    active = slope.any(1).nonzero()[:, 0]
    if len(active) == 0:
        return torch.zeros_like(hidden)
    if len(active) < 0.8 * len(slope):  # prompt tokens carry no loss: leave their rows out
        out = torch.zeros_like(hidden)
        out[active] = _chunk_gradient(
            hidden[active],
            logits[active],
            normaliser[active],
            targets[active],
            slope[active],
            head,
            pair,
            grad_factors,
        )
        return out
    # d loss / d logits = slope * (onehot(target) - softmax), summed over a row's targets and built in
    # the logits' own memory
    wide = logits.sub_(normaliser[:, None]).exp_().mul_(-slope.sum(1, keepdim=True))
    wide.scatter_add_(1, targets, slope)
    wide = wide.to(hidden.dtype)
    out = wide @ head.weight.t()
    if pair is not None:
        grad_a, grad_b = grad_factors
        grad_b.add_((hidden @ pair.a).t() @ wide, alpha=pair.scale)
        narrow = (wide @ pair.bs[0].t()).mul_(pair.scale)
        grad_a.add_(hidden.t() @ narrow)
        out.addmm_(narrow, pair.a.t())
    return out
