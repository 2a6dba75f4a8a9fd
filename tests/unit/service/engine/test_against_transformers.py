"""The decoder, its gradients and its checkpoints against transformers and PEFT."""

from __future__ import annotations

import numpy as np
import peft
import pytest
import torch

from tests.unit.service.engine.conftest import KINDS, make_items
from tinsmith.service.engine.backend import LoraSpec, LossSpec, PassResult, TrainItem
from tinsmith.service.engine.batching import causal_attention, pack
from tinsmith.service.engine.decoder import logits_of, run_decoder
from tinsmith.service.engine.torch_backend import TorchBackend

CROSS_ENTROPY = LossSpec("cross_entropy", {})


def run(
    backend: TorchBackend, items: list[TrainItem], loss=CROSS_ENTROPY, backward=True, model="m"
):
    *progress, result = backend.run_pass(model, items, loss, backward=backward)
    assert isinstance(result, PassResult)
    assert progress[-1] == 1.0
    return result


def backend_with(directory, seed: int = 3, model: str = "m", **options) -> TorchBackend:
    backend = TorchBackend(device="cpu", dtype="float32")
    backend.create(model, LoraSpec(str(directory), rank=4, seed=seed, **options))
    return backend


def randomise(backend: TorchBackend, model: str = "m", seed: int = 0) -> None:
    """B starts at zero, which would hide errors in A's gradient."""
    generator = torch.Generator().manual_seed(seed)
    values = backend.adapters[model].values
    values.copy_(torch.randn(values.shape, generator=generator) * 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(kind, model_directory, oracle):
    """All logits of packed sequences, through the decoder itself."""
    found = TorchBackend(device="cpu", dtype="float32").residents.get(str(model_directory(kind)))
    assert found is not None
    base, _ = found
    items = make_items(4, [40, 1, 7, 130, 7])
    (batch,) = pack(items, 10_000, {}, base.device)

    def attend(layer, q, k, v):
        return causal_attention(batch.runs, q, k, v)

    with torch.no_grad():
        hidden = run_decoder(base, batch.tokens, batch.positions, attend, [])
        ours = logits_of(base, hidden, []).split(batch.lengths)
        for index, logits in zip(batch.order, ours, strict=True):
            expected = oracle(kind)(torch.from_numpy(items[index].tokens)[None]).logits[0]
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_of_a_pass_equal_transformers(kind, model_directory, oracle):
    backend = backend_with(model_directory(kind))
    items = make_items(1, [40, 1, 7, 130, 7])
    result = run(backend, items, backward=False)
    for item, output in zip(items, result.outputs, strict=True):
        with torch.no_grad():
            logits = oracle(kind)(torch.from_numpy(item.tokens)[None]).logits[0]
        expected = logits.log_softmax(-1)[range(len(item.tokens)), item.inputs["target_tokens"]]
        np.testing.assert_allclose(output["logprobs"], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_lora_gradients_equal_peft(kind, model_directory, oracle, tmp_path):
    backend = backend_with(model_directory(kind))
    randomise(backend)
    backend.save("m", tmp_path / "adapter", optimizer=False)
    items = make_items(2, [33, 5, 60])
    result = run(backend, items)

    base = type(oracle(kind)).from_pretrained(model_directory(kind))
    reference = peft.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    total = torch.zeros(())
    for item, output in zip(items, result.outputs, strict=True):
        logits = reference(torch.from_numpy(item.tokens)[None]).logits[0]
        logprobs = logits.log_softmax(-1)[range(len(item.tokens)), item.inputs["target_tokens"]]
        np.testing.assert_allclose(output["logprobs"], logprobs.detach(), atol=1e-4, rtol=0)
        total = total - (logprobs * torch.from_numpy(item.inputs["weights"])).sum()
    total.backward()
    assert result.metrics["loss:sum"] == pytest.approx(float(total.detach()), abs=1e-3)

    adapter = backend.adapters["m"]
    gradients = adapter.split(adapter.gradient)
    named = dict(reference.named_parameters())
    checked = 0
    for place in adapter.sites:
        a, *bs = gradients[place.key]
        for index, (module, b) in enumerate(zip(place.modules, bs, strict=True)):
            name = f"base_model.model.{module}"
            part = a[:, index * 4 : (index + 1) * 4].t()
            for ours, theirs in (
                (part, named[f"{name}.lora_A.default.weight"].grad),
                (b.t(), named[f"{name}.lora_B.default.weight"].grad),
            ):
                assert theirs is not None
                scale = max(1.0, float(theirs.abs().max()))
                assert float((ours - theirs).abs().max()) < 1e-4 * scale, name
                checked += 1
    assert checked == 2 * (7 * 3 + 1)
