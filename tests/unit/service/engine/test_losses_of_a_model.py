"""Every loss through a whole model: value, outputs and gradients against PEFT in float64; refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import peft
import pytest
import torch

from tests.unit.service.engine.conftest import make_items
from tests.unit.service.engine.test_against_transformers import backend_with, randomise, run
from tinsmith.errors import RequestError
from tinsmith.service.engine import training, vocab_loss
from tinsmith.service.engine.backend import LossSpec, TrainItem
from tinsmith.service.engine.checks import LOSS_RULES, check_items
from tinsmith.service.engine.torch_backend import TorchBackend

CLIP = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
CASES = [
    LossSpec("cross_entropy", {}),
    LossSpec("importance_sampling", {}),
    LossSpec("ppo", {}),
    LossSpec("cispo", {}),
    LossSpec("cispo", CLIP),
    LossSpec("dro", {"beta": 0.05}),
    LossSpec("gspo", CLIP),
]
CLIPPED = [name for name, rule in LOSS_RULES.items() if CLIP.keys() <= rule.settings.keys()]
LENGTHS = [33, 5, 60, 1, 33]


def with_inputs(items: list[TrainItem], **inputs: Any) -> list[TrainItem]:
    return [replace(item, inputs={**item.inputs, **inputs}) for item in items]


def policy_items(backend: TorchBackend, seed: int) -> list[TrainItem]:
    """Sampling policies near the present one, so that ratios lie on both sides of every bound."""
    random = np.random.default_rng(seed)
    items = make_items(seed, LENGTHS)
    near: list[TrainItem] = []
    for item, output in zip(items, run(backend, items, backward=False).outputs, strict=True):
        length = len(item.tokens)
        noise = random.normal(0, 0.3, length) + random.normal(0, 0.15)
        mask = (np.arange(length) >= length // 2).astype(np.float32)  # a prompt, then an answer
        inputs = {
            "logprobs": (output["logprobs"] + noise).astype(np.float32),
            "sequence_ratio_mask": mask,
            "advantages": item.inputs["advantages"] * mask,
        }
        near.append(replace(item, inputs={**item.inputs, **inputs}))
    return near


def terms(loss: LossSpec, lp: torch.Tensor, item: TrainItem) -> torch.Tensor:
    """The published formulas, in plain torch."""
    inputs = {k: torch.from_numpy(np.asarray(v)).double() for k, v in item.inputs.items()}
    if loss.name == "cross_entropy":
        return -lp * inputs.get("weights", 1.0)
    q, advantages = inputs["logprobs"], inputs["advantages"]
    default = (0.0, 4.0) if loss.name == "cispo" else (0.8, 1.2)
    low, high = (
        inputs.get(key, torch.tensor(loss.params.get(key, value), dtype=torch.float64))
        for key, value in zip(CLIP, default, strict=True)
    )
    ratio = (lp - q).exp()
    if loss.name == "importance_sampling":
        return -ratio * advantages
    if loss.name == "cispo":
        return -torch.minimum(torch.maximum(ratio, low), high).detach() * lp * advantages
    if loss.name == "dro":
        return -(lp * advantages - 0.5 * loss.params["beta"] * (lp - q) ** 2)
    if loss.name == "gspo":
        mask = inputs["sequence_ratio_mask"] != 0
        ratio = ((lp.detach() - q)[mask].mean() + lp - lp.detach()).exp()
    clipped = torch.minimum(torch.maximum(ratio, low), high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def check_against_peft(backend, oracle, directory, folder, items, loss) -> None:
    """One pass of ours and one of PEFT in float64: loss, log-probabilities, every factor's gradient."""
    backend.save("m", folder, optimizer=False)
    result = run(backend, items, loss)
    base = type(oracle).from_pretrained(directory).double()
    reference = peft.PeftModel.from_pretrained(base, folder, is_trainable=True).double()
    total = torch.zeros((), dtype=torch.float64)
    for item, output in zip(items, result.outputs, strict=True):
        table = reference(torch.from_numpy(item.tokens)[None]).logits[0].log_softmax(-1)
        targets = torch.from_numpy(np.array(item.inputs["target_tokens"]))
        lp = table.gather(1, targets.reshape(len(table), -1)).reshape(targets.shape)
        assert output["logprobs"].shape == targets.shape
        np.testing.assert_allclose(output["logprobs"], lp.detach(), atol=1e-4, rtol=0)
        total = total + terms(loss, lp, item).sum()
    total.backward()
    assert result.metrics.keys() == {"loss:sum"}
    assert result.metrics["loss:sum"] == pytest.approx(float(total.detach()), rel=1e-4, abs=1e-3)
    assert set(result.outputs[0]) == {"logprobs"}
    adapter = backend.adapters["m"]
    named = dict(reference.named_parameters())
    gradients = adapter.split(adapter.gradient)
    scale = max(float(p.grad.abs().max()) for p in named.values() if p.grad is not None)
    assert scale > 0.1
    for place in adapter.sites:
        a, *bs = gradients[place.key]
        for index, (module, b) in enumerate(zip(place.modules, bs, strict=True)):
            name = f"base_model.model.{module}"
            for ours, theirs in (
                (a[:, index * 4 : (index + 1) * 4].t(), named[f"{name}.lora_A.default.weight"]),
                (b.t(), named[f"{name}.lora_B.default.weight"]),
            ):
                assert theirs.grad is not None
                assert float((ours - theirs.grad).abs().max()) < 1e-4 * max(scale, 1.0), name


@pytest.fixture
def small_parts(monkeypatch):
    """Micro-batches of a few sequences and chunks of a few rows: sequences are longer than a chunk."""
    monkeypatch.setattr(training, "_token_budget", lambda base: 70)
    monkeypatch.setattr(vocab_loss, "_rows_per_chunk", lambda head: 13)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("loss", "by_token"),
    [(loss, False) for loss in CASES] + [(loss, True) for loss in CASES if loss.name in CLIPPED],
    ids=lambda value: value.name if isinstance(value, LossSpec) else f"by_token={value}",
)
def test_losses_equal_peft_in_float64(loss, by_token, model_directory, oracle, tmp_path):
    directory = model_directory("qwen3")
    backend = backend_with(directory)
    randomise(backend)
    items = policy_items(backend, 2)
    if by_token:
        # some datums bring bounds of their own; the others have the setting's
        random = np.random.default_rng(0)
        for index in (0, 2):
            length = len(items[index].tokens)
            own = {"clip_low_threshold": random.uniform(0.7, 1.0, length).astype(np.float32)}
            own["clip_high_threshold"] = np.full(length, 1.05, np.float32)
            items[index] = replace(items[index], inputs={**items[index].inputs, **own})
    check_items(items, loss, backend.describe(str(directory)))
    check_against_peft(backend, oracle("qwen3"), directory, tmp_path / "a", items, loss)


@pytest.mark.usefixtures("small_parts")
def test_several_targets_a_token_equal_peft_in_float64(model_directory, oracle, tmp_path):
    """K differs between datums, one datum is plain, one has no weights, one repeats a target."""
    directory = model_directory("llama-gqa")
    backend = backend_with(directory)
    randomise(backend)
    random = np.random.default_rng(5)
    items = make_items(6, [*LENGTHS, 20])
    for index, columns in enumerate((3, 1, 8, 5, 2)):
        shape = (len(items[index].tokens), columns)
        targets = random.integers(0, 96, shape)
        inputs = {"target_tokens": targets}
        if index != 4:
            weights = random.normal(size=shape) * (random.random(shape) < 0.6)
            inputs["weights"] = weights.astype(np.float32)
        items[index] = TrainItem(items[index].tokens, inputs)
    items[2].inputs["target_tokens"][:, 1] = items[2].inputs["target_tokens"][:, 0]
    # its weights add up to nothing in each row, but its gradient is not nothing
    items[0].inputs["weights"][:] = np.array([1.0, -0.5, -0.5])
    loss = CASES[0]
    check_items(items, loss, backend.describe(str(directory)))
    check_against_peft(backend, oracle("llama-gqa"), directory, tmp_path / "a", items, loss)


def test_weights_left_out_of_some_datums_are_1_there_alone(model_directory):
    backend = backend_with(model_directory("qwen3"))
    items = make_items(0, [9, 9])
    bare = TrainItem(items[1].tokens, {"target_tokens": items[1].inputs["target_tokens"]})
    result = run(backend, [items[0], bare])
    first, second = (output["logprobs"] for output in result.outputs)
    expected = -(first * items[0].inputs["weights"]).sum() - second.sum()
    assert result.metrics["loss:sum"] == pytest.approx(float(expected), rel=1e-5)


def test_a_forward_pass_gives_the_same_numbers(model_directory):
    backend = backend_with(model_directory("qwen3"))
    randomise(backend)
    items = policy_items(backend, 4)
    for loss in CASES:
        there, back = (run(backend, items, loss, backward=b) for b in (False, True))
        expected = back.metrics["loss:sum"]
        assert there.metrics["loss:sum"] == pytest.approx(expected, rel=1e-4, abs=1e-3), loss


def test_a_ratio_that_overflows_leaves_no_gradient(model_directory):
    """Clipped, its loss is finite; the gradient would not be."""
    backend = backend_with(model_directory("qwen3"))
    items = make_items(0, [10])
    items[0].inputs["logprobs"][:] = -200.0
    items[0].inputs["advantages"][:] = 1.0
    with pytest.raises(RequestError, match="gradient was dropped"):
        run(backend, items, LossSpec("ppo", {}))
    assert not backend.adapters["m"].gradient.any()
    # cispo's ratio is a constant, which clipping makes finite
    assert np.isfinite(run(backend, items, LossSpec("cispo", {})).metrics["loss:sum"])


@pytest.mark.parametrize(
    ("loss", "change", "words"),
    [
        (LossSpec("dro", {}), {}, r"needs 'beta', whose default on hosted Tinker is not public"),
        (LossSpec("gspo", {}), {}, r"loss_fn_config\['clip_low_threshold'\] or loss_fn_inputs"),
        (LossSpec("gspo", CLIP), {"sequence_ratio_mask": None}, "needs loss_fn_inputs"),
        (LossSpec("gspo", CLIP), {"sequence_ratio_mask": np.zeros(5)}, "0 everywhere"),
        (LossSpec("stable_reinforce", {}), {}, "formula is not public"),
        (LossSpec("custom", {}), {}, "forward_backward_custom"),
        (LossSpec("pppo", {}), {}, "Did you mean ppo"),
        (LossSpec("ppo", {"beta": 1.0}), {}, "has no setting 'beta'"),
        (LossSpec("ppo", {"clip_low_threshold": 1.3}), {}, "is above"),
        (LossSpec("ppo", {}), {"clip_low_threshold": np.array([0, 0, 0, 0, 2.0])}, "is above"),
        (LossSpec("ppo", {}), {"mask": np.ones(5)}, "has no input 'mask'"),
        (LossSpec("ppo", {}), {"target_tokens": np.ones((5, 2), int)}, r"\[5, 2\], expected \[5\]"),
        (LossSpec("ppo", {}), {"advantages": np.ones(4)}, r"shape \[4\], expected \[5\]"),
        (LossSpec("ppo", {}), {"advantages": np.full(5, np.nan)}, "nan at position 0"),
        (CASES[0], {"target_tokens": np.ones((4, 2), int)}, r"\[4, 2\], expected \[5\] or \[5, K\]"),
        (CASES[0], {"target_tokens": np.ones((5, 0), int)}, r"\[5, 0\], expected"),
        (CASES[0], {"target_tokens": np.ones((5, 1, 1), int)}, r"\[5, 1, 1\], expected"),
        (CASES[0], {"target_tokens": np.full((5, 2), 96)}, "token id 96 is outside"),
        (CASES[0], {"target_tokens": np.ones((5, 2), int)}, r"expected \[5, 2\] as target_tokens"),
        (CASES[0], {"weights": np.ones((5, 2))}, r"expected \[5\] as target_tokens has"),
        (
            CASES[0],
            {"target_tokens": np.ones((5, 2), int), "weights": np.array([[0, np.inf]] * 5)},
            r"inf at position \[0, 1\]",
        ),
    ],
)  # fmt: skip
def test_refusals_are_sentences(loss, change, words, model_directory):
    info = TorchBackend(device="cpu").describe(str(model_directory("qwen3")))
    item = with_inputs(make_items(0, [5]), sequence_ratio_mask=np.ones(5))[0]
    check_items([item], LossSpec("ppo", {}), info)  # names of other losses do no harm
    inputs = {k: v for k, v in (item.inputs | change).items() if v is not None}
    with pytest.raises(RequestError, match=words) as caught:
        check_items([TrainItem(item.tokens, inputs)], loss, info)
    assert str(caught.value).endswith((".", "?"))
    assert caught.value.status == 400
