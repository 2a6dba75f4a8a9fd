"""Losses and their gradients against finite differences in float64, through the whole loss head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tinsmith.service.engine.lora import LoraPair
from tinsmith.service.engine.losses import LOSSES
from tinsmith.service.engine.model import LinearWeights
from tinsmith.service.engine.vocab_loss import VocabLoss, token_logprobs

TOKENS, HIDDEN, VOCAB, RANK = 11, 6, 13, 2


def setting(seed: int, spread: float):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    hidden, head = normal(TOKENS, HIDDEN), LinearWeights(normal(HIDDEN, VOCAB))
    pair = LoraPair(normal(HIDDEN, RANK), (normal(RANK, VOCAB),), 0.7)
    targets = torch.randint(0, VOCAB, (TOKENS,), generator=random)
    current = token_logprobs(hidden, targets, head, pair)
    inputs = {
        "target_tokens": targets,
        "weights": normal(TOKENS),
        "logprobs": current.double() + spread * normal(TOKENS),
        "advantages": normal(TOKENS),
    }
    inputs["advantages"][:3] = 0.0  # a prompt: rows without loss
    return hidden, head, pair, inputs


def reference(name, hidden, head, a, b, scale, inputs, params) -> float:
    """The formula written out once more, in float64, by itself."""
    logits = hidden @ head.weight + scale * (hidden @ a) @ b
    lp = logits.log_softmax(-1)[torch.arange(TOKENS), inputs["target_tokens"]]
    if name == "cross_entropy":
        return float(-(lp * inputs["weights"]).sum())
    ratio = (lp - inputs["logprobs"]).exp()
    plain = ratio * inputs["advantages"]
    if name == "importance_sampling":
        return float(-plain.sum())
    low, high = params.get("clip_low_threshold", 0.8), params.get("clip_high_threshold", 1.2)
    return float(-torch.minimum(plain, ratio.clip(low, high) * inputs["advantages"]).sum())


@pytest.mark.parametrize("params", [{}, {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5}])
@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("seed", range(3))
def test_gradient_equals_finite_differences(name, params, seed, monkeypatch):
    monkeypatch.setattr(
        torch.Tensor, "float", torch.Tensor.double
    )  # the head in float64 throughout
    params = params if name == "ppo" else {}
    hidden, head, pair, inputs = setting(seed, spread=0.5)
    leaves = [x.clone().requires_grad_() for x in (hidden, pair.a, pair.bs[0])]
    value, logprobs = VocabLoss.apply(
        leaves[0], head, LOSSES[name], params, inputs, pair.scale, leaves[1], leaves[2]
    )
    value.backward()

    def loss_at(values: list[torch.Tensor]) -> float:
        return reference(name, values[0], head, values[1], values[2], pair.scale, inputs, params)

    plain = [leaf.detach() for leaf in leaves]
    assert float(value.detach()) == pytest.approx(loss_at(plain), rel=1e-9)
    assert torch.equal(logprobs, token_logprobs(hidden, inputs["target_tokens"], head, pair))
    step = 1e-6
    for which, leaf in enumerate(leaves):
        numeric = torch.zeros_like(leaf)
        for index in np.ndindex(*leaf.shape):
            up, down = [x.clone() for x in plain], [x.clone() for x in plain]
            up[which][index] += step
            down[which][index] -= step
            numeric[index] = (loss_at(up) - loss_at(down)) / (2 * step)
        # the factors' gradients are summed in float32, as in training
        torch.testing.assert_close(leaf.grad, numeric, rtol=2e-5, atol=2e-5)


def test_clipping_happened_in_the_ppo_test():
    """Guards the test above: its data really lie on both sides of both thresholds."""
    hidden, head, pair, inputs = setting(0, spread=0.5)
    ratio = (token_logprobs(hidden, inputs["target_tokens"], head, pair) - inputs["logprobs"]).exp()
    assert (ratio < 0.8).any()
    assert (ratio > 1.2).any()


def test_ppo_equals_importance_sampling_inside_the_bounds():
    hidden, head, pair, inputs = setting(1, spread=0.01)
    lp = token_logprobs(hidden, inputs["target_tokens"], head, pair)
    ppo = LOSSES["ppo"](lp, inputs, {})
    torch.testing.assert_close(ppo, LOSSES["importance_sampling"](lp, inputs, {}))


def test_chunks_do_not_matter(monkeypatch):
    hidden, head, pair, inputs = setting(2, spread=0.3)
    values = []
    for rows in (256, 16):
        monkeypatch.setattr(
            "tinsmith.service.engine.vocab_loss._rows_per_chunk", lambda head, rows=rows: rows
        )
        big = torch.cat([hidden] * 5).requires_grad_()
        many = {key: torch.cat([x] * 5) for key, x in inputs.items()}
        value, _ = VocabLoss.apply(big, head, LOSSES["ppo"], {}, many, 0.7, pair.a, pair.bs[0])
        value.backward()
        values.append((float(value.detach()), big.grad))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-12)
    torch.testing.assert_close(values[0][1], values[1][1])
