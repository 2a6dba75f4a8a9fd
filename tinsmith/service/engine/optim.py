"""AdamW on an adapter's flat buffers, with Tinker's semantics: summed gradients, then cleared."""

from __future__ import annotations

import torch

from tinsmith.errors import RequestError
from tinsmith.service.engine.backend import AdamSpec, Metrics
from tinsmith.service.engine.lora import Adapter


@torch.no_grad()
def adam_step(adapter: Adapter, adam: AdamSpec) -> Metrics:
    """One decoupled-decay Adam step; refuses a gradient that is not finite and changes nothing then."""
    gradient = adapter.gradient
    norm = float(torch.linalg.vector_norm(gradient))
    if not torch.isfinite(torch.tensor(norm)):
        gradient.zero_()
        raise RequestError(
            "the gradient is not finite, so the step was refused and the gradient cleared; "
            "lower the learning rate or check the advantages."
        )
    if adam.grad_clip_norm > 0 and norm > adam.grad_clip_norm:
        gradient.mul_(adam.grad_clip_norm / norm)
    step = adapter.steps + 1
    adapter.moment1.lerp_(gradient, 1 - adam.beta1)
    adapter.moment2.mul_(adam.beta2).addcmul_(gradient, gradient, value=1 - adam.beta2)
    correction1 = 1 - adam.beta1**step
    correction2 = 1 - adam.beta2**step
    denominator = (adapter.moment2 / correction2).sqrt_().add_(adam.eps)
    if adam.weight_decay > 0:
        adapter.values.mul_(1 - adam.learning_rate * adam.weight_decay)
    update = (adapter.moment1 / denominator).mul_(adam.learning_rate / correction1)
    # eps may be 0, and then an untouched parameter would give 0 / 0
    adapter.values.sub_(update.nan_to_num_(nan=0.0) if adam.eps == 0 else update)
    adapter.steps = step
    gradient.zero_()
    return {"unclipped_grad_l2:mean": norm}
