"""Losses and their gradients against finite differences in float64, through the whole loss head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tinsmith.service.engine.backend import LossSpec
from tinsmith.service.engine.checks import settings_of
from tinsmith.service.engine.lora import LoraPair
from tinsmith.service.engine.losses import LOSSES, SEQUENCE_LOG_RATIO, sequence_log_ratios
from tinsmith.service.engine.model import LinearWeights
from tinsmith.service.engine.vocab_loss import VocabLoss, token_logprobs

TOKENS, HIDDEN, VOCAB, RANK = 11, 6, 13, 2
LENGTHS = (4, 7)  # two sequences
CASES = [
    ("cross_entropy", {}),
    ("cross_entropy of 4 targets", {}),
    ("importance_sampling", {}),
    ("ppo", {}),
    ("ppo", {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5}),
    ("ppo by token", {"clip_high_threshold": 1.5}),
    ("cispo", {}),
    ("cispo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    ("dro", {"beta": 0.3}),
    ("gspo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    ("gspo by token", {"clip_high_threshold": 1.5}),
]


def setting(seed: int, spread: float, name: str = "ppo"):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    hidden, head = normal(TOKENS, HIDDEN), LinearWeights(normal(HIDDEN, VOCAB))
    pair = LoraPair(normal(HIDDEN, RANK), (normal(RANK, VOCAB),), 0.7)
    shape = (TOKENS, 4) if "targets" in name else (TOKENS,)
    targets = torch.randint(0, VOCAB, shape, generator=random)
    current = token_logprobs(hidden, targets, head, pair)
    inputs = {
        "target_tokens": targets,
        "weights": normal(*shape),
        "logprobs": current.double() + spread * normal(*shape),
        "advantages": normal(*shape),
        "sequence_ratio_mask": (torch.rand(TOKENS, generator=random) < 0.7).double(),
    }
    inputs["advantages"][:3] = 0.0  # a prompt: rows without loss
    inputs["weights"][:3] = 0.0
    inputs["sequence_ratio_mask"][-1] = inputs["sequence_ratio_mask"][0] = 1.0
    if "by token" in name:
        inputs["clip_low_threshold"] = 0.7 + 0.3 * torch.rand(TOKENS, generator=random).double()
    return hidden, head, pair, inputs


def logprobs_of(hidden, head, a, b, scale, targets) -> torch.Tensor:
    logits = (hidden @ head.weight + scale * (hidden @ a) @ b).log_softmax(-1)
    return logits.gather(1, targets.reshape(TOKENS, -1)).reshape(targets.shape)


def reference(name, lp, fixed, inputs, params) -> float:
    """The formula written out once more, by itself; `fixed` is what has no gradient."""
    name = name.split()[0]
    if name == "cross_entropy":
        return float(-(lp * inputs["weights"]).sum())
    q, advantages = inputs["logprobs"], inputs["advantages"]
    low = inputs.get("clip_low_threshold", lp.new_tensor(params.get("clip_low_threshold", 0.8)))
    high = lp.new_tensor(params.get("clip_high_threshold", 1.2))
    if name == "dro":
        return float(-(lp * advantages - 0.5 * params["beta"] * (lp - q) ** 2).sum())
    if name == "cispo":
        low, high = params.get("clip_low_threshold", 0.0), params.get("clip_high_threshold", 4.0)
        return float(-((fixed - q).exp().clip(low, high) * lp * advantages).sum())
    ratio = (lp - q).exp()
    if name == "gspo":
        parts, start = [], 0
        for length in LENGTHS:
            part = slice(start, start + length)
            chosen = inputs["sequence_ratio_mask"][part] != 0
            mean = (fixed[part] - q[part])[chosen].mean()
            parts.append((mean + lp[part] - fixed[part]).exp())
            start += length
        ratio = torch.cat(parts)
    plain = ratio * advantages
    if name == "importance_sampling":
        return float(-plain.sum())
    return float(-torch.minimum(plain, ratio.clip(low, high) * advantages).sum())


@pytest.mark.parametrize(("name", "params"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_gradient_equals_finite_differences(name, params, seed, monkeypatch):
    monkeypatch.setattr(
        torch.Tensor, "float", torch.Tensor.double
    )  # the head in float64 throughout
    hidden, head, pair, inputs = setting(seed, 0.5, name)
    targets = inputs["target_tokens"]
    fixed = logprobs_of(hidden, head, pair.a, pair.bs[0], pair.scale, targets)
    loss = name.split()[0]
    if loss == "gspo":
        inputs[SEQUENCE_LOG_RATIO] = sequence_log_ratios(fixed, inputs, LENGTHS)
    leaves = [x.clone().requires_grad_() for x in (hidden, pair.a, pair.bs[0])]
    settings = settings_of(LossSpec(loss, params))
    value, logprobs = VocabLoss.apply(
        leaves[0], head, LOSSES[loss], settings, inputs, pair.scale, leaves[1], leaves[2]
    )
    value.backward()

    def loss_at(values: list[torch.Tensor]) -> float:
        lp = logprobs_of(values[0], head, values[1], values[2], pair.scale, targets)
        return reference(name, lp, fixed, inputs, params)

    plain = [leaf.detach() for leaf in leaves]
    assert float(value.detach()) == pytest.approx(loss_at(plain), rel=1e-9)
    assert logprobs.shape == targets.shape
    assert torch.equal(logprobs, token_logprobs(hidden, targets, head, pair))
    torch.testing.assert_close(logprobs, fixed)
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


def test_clipping_happened_in_the_tests_above():
    """Guards them: their data really lie on both sides of both thresholds."""
    hidden, head, pair, inputs = setting(0, spread=0.5)
    lp = token_logprobs(hidden, inputs["target_tokens"], head, pair)
    ratio = (lp - inputs["logprobs"]).exp()
    assert (ratio < 0.8).any()
    assert (ratio > 1.2).any()
    sequence = [
        sequence_log_ratios(lp.double(), setting(seed, 0.5)[3], LENGTHS).exp() for seed in range(3)
    ]
    assert (torch.cat(sequence) < 0.9).any()
    assert (torch.cat(sequence) > 1.1).any()


def test_ppo_equals_importance_sampling_inside_the_bounds():
    hidden, head, pair, inputs = setting(1, spread=0.01)
    lp = token_logprobs(hidden, inputs["target_tokens"], head, pair)
    ppo = LOSSES["ppo"](lp, inputs, settings_of(LossSpec("ppo", {})))
    torch.testing.assert_close(ppo, LOSSES["importance_sampling"](lp, inputs, {}))


@pytest.mark.parametrize("name", ["ppo", "cross_entropy of 4 targets"])
def test_chunks_do_not_matter(name, monkeypatch):
    hidden, head, pair, inputs = setting(2, 0.3, name)
    loss = name.split()[0]
    settings = settings_of(LossSpec(loss, {}))
    values = []
    for rows in (256, 16):
        monkeypatch.setattr(
            "tinsmith.service.engine.vocab_loss._rows_per_chunk", lambda head, rows=rows: rows
        )
        big = torch.cat([hidden] * 5).requires_grad_()
        many = {key: torch.cat([x] * 5) for key, x in inputs.items()}
        value, _ = VocabLoss.apply(big, head, LOSSES[loss], settings, many, 0.7, pair.a, pair.bs[0])
        value.backward()
        values.append((float(value.detach()), big.grad))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-12)
    torch.testing.assert_close(values[0][1], values[1][1])
