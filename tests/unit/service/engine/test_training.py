"""Training: sums, accumulation, isolation between adapters, checkpoints, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.unit.service.engine.conftest import make_items
from tests.unit.service.engine.test_against_transformers import backend_with, randomise, run
from tinsmith.errors import ConfigError, ModelError, RequestError, StorageError
from tinsmith.service.engine import training
from tinsmith.service.engine.backend import AdamSpec, LoraSpec, LossSpec
from tinsmith.service.engine.torch_backend import TorchBackend

PPO = LossSpec("ppo", {})
IMPORTANCE = LossSpec("importance_sampling", {})
ADAM = AdamSpec(learning_rate=1e-2, weight_decay=0.1, grad_clip_norm=5.0)


def test_gradients_are_sums_over_calls_and_packing(model_directory, monkeypatch):
    directory = model_directory("qwen3")
    items = make_items(0, [9, 30, 9, 2, 17, 1])
    whole, apart = backend_with(directory), backend_with(directory)
    randomise(whole)
    randomise(apart)
    together = run(whole, items, PPO)
    monkeypatch.setattr(training, "_token_budget", lambda base: 8)
    singles = [run(apart, [item], PPO) for item in items]
    total = sum(result.metrics["loss:sum"] for result in singles)
    assert together.metrics["loss:sum"] == pytest.approx(total, rel=1e-5)
    for one, single in zip(together.outputs, singles, strict=True):
        np.testing.assert_allclose(one["logprobs"], single.outputs[0]["logprobs"], atol=1e-5)
    torch.testing.assert_close(
        whole.adapters["m"].gradient, apart.adapters["m"].gradient, atol=1e-4, rtol=1e-4
    )


def test_a_forward_leaves_no_gradient(model_directory):
    backend = backend_with(model_directory("qwen3"))
    run(backend, make_items(0, [9, 3]), PPO, backward=False)
    assert not backend.adapters["m"].gradient.any()


def test_adam_equals_torch(model_directory):
    backend = backend_with(model_directory("qwen3"))
    randomise(backend)
    adapter = backend.adapters["m"]
    parameter = adapter.values.clone().double().requires_grad_()
    reference = torch.optim.AdamW(
        [parameter], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
    )
    for seed in range(5):
        run(backend, make_items(seed, [20, 5]), IMPORTANCE)
        parameter.grad = adapter.gradient.clone().double()
        norm = float(torch.nn.utils.clip_grad_norm_([parameter], 3.0))
        metrics = backend.optim_step("m", AdamSpec(1e-2, 0.9, 0.95, 1e-8, 0.1, 3.0))
        assert metrics["unclipped_grad_l2:mean"] == pytest.approx(norm, rel=1e-4)
        reference.step()
        torch.testing.assert_close(adapter.values.double(), parameter, atol=1e-6, rtol=1e-5)
        assert not adapter.gradient.any()


def test_two_adapters_side_by_side_equal_each_alone(model_directory):
    """To the bit: what one tenant does never moves another's numbers."""

    def steps(backend: TorchBackend, names: list[str]):
        for step in range(4):
            for name in names:
                run(backend, make_items(step * 10 + ord(name), [25, 7, 7]), PPO, model=name)
            for name in names:
                backend.optim_step(name, ADAM)

    def fresh(names: list[str]) -> TorchBackend:
        backend = TorchBackend(device="cpu", dtype="float32")
        for name in names:
            rank = 4 if name == "a" else 8
            spec = LoraSpec(str(model_directory("qwen3")), rank, seed=ord(name))
            backend.create(name, spec)
        return backend

    both = fresh(["a", "b"])
    steps(both, ["a", "b"])
    for name in "ab":
        alone = fresh([name])
        steps(alone, [name])
        assert torch.equal(alone.adapters[name].values, both.adapters[name].values)


@pytest.mark.parametrize("optimizer", [True, False])
def test_a_loaded_checkpoint_goes_on_exactly(model_directory, tmp_path, optimizer):
    directory = model_directory("qwen2-biases")
    backend = backend_with(directory)

    def step(name: str, seed: int) -> None:
        run(backend, make_items(seed, [12, 30]), PPO, model=name)
        backend.optim_step(name, ADAM)

    step("m", 0)
    step("m", 1)
    backend.save("m", tmp_path / "x" / "saved", optimizer=True)
    backend.create("n", LoraSpec(str(directory), 4, seed=99))
    backend.load("n", tmp_path / "x" / "saved", optimizer=optimizer)
    assert torch.equal(backend.adapters["n"].values, backend.adapters["m"].values)
    step("m", 2)
    step("n", 2)
    same = torch.equal(backend.adapters["n"].values, backend.adapters["m"].values)
    assert same == optimizer
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == ["saved"]


def test_old_snapshots_never_drift(model_directory):
    backend = backend_with(model_directory("qwen3"))
    randomise(backend)
    backend.freeze("m", "old")
    before = {key: pair.a.clone() for key, pair in backend.frozen["old"].pairs.items()}
    run(backend, make_items(0, [20]), PPO)
    backend.optim_step("m", ADAM)
    assert all(torch.equal(before[k], p.a) for k, p in backend.frozen["old"].pairs.items())


def test_an_abandoned_or_overflowing_pass_leaves_no_gradient(model_directory, monkeypatch):
    backend = backend_with(model_directory("qwen3"))
    items = make_items(0, [10] * 6)
    monkeypatch.setattr(training, "_token_budget", lambda base: 10)
    parts = backend.run_pass("m", items, PPO, backward=True)
    next(parts)
    parts.close()
    assert not backend.adapters["m"].gradient.any()
    items[3].inputs["logprobs"][:] = -3e4  # exp(lp - q) overflows
    with pytest.raises(RequestError, match="gradient was dropped"):
        run(backend, items, IMPORTANCE)
    assert not backend.adapters["m"].gradient.any()


def test_bfloat16_is_close_to_float32(model_directory):
    directory = str(model_directory("qwen3"))
    results = []
    for dtype in ("float32", "bfloat16"):
        backend = TorchBackend(device="cpu", dtype=dtype)
        backend.create("m", LoraSpec(directory, 4, seed=3))
        randomise(backend)
        result = run(backend, make_items(5, [40, 8]), LossSpec("cross_entropy", {}))
        results.append((result, backend.adapters["m"].gradient.clone()))
    (exact, gradient), (rough, rough_gradient) = results
    difference = exact.outputs[0]["logprobs"] - rough.outputs[0]["logprobs"]
    assert np.abs(difference).mean() < 0.15
    cosine = torch.nn.functional.cosine_similarity(gradient, rough_gradient, dim=0)
    assert float(cosine) > 0.98


@pytest.mark.parametrize(("device", "dtype"), [("tpu", "auto"), ("cpu", "float16")])
def test_unknown_devices_and_types_are_refused(device, dtype):
    with pytest.raises(ConfigError, match="must be one of"):
        TorchBackend(device=device, dtype=dtype)


def test_unreadable_models_say_what_is_wrong(model_directory, tmp_path):
    backend = TorchBackend(device="cpu")
    with pytest.raises(ModelError, match="there is no directory"):
        backend.describe(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"no config\.json"):
        backend.describe(str(tmp_path))
    config = json.loads((model_directory("qwen3") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"no weights: model\.safetensors"):
        backend.create("m", LoraSpec(str(tmp_path), 4, seed=0))
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ModelError, match="LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"):
        backend.describe(str(other))
    (other / "config.json").write_text("{broken")
    with pytest.raises(ModelError, match="cannot read"):
        backend.describe(str(other))


def test_a_checkpoint_of_another_shape_is_refused(model_directory, tmp_path):
    backend = backend_with(model_directory("qwen3"))
    backend.save("m", tmp_path / "saved", optimizer=False)
    backend.create("wide", LoraSpec(str(model_directory("qwen3")), 8, seed=0))
    before = backend.adapters["wide"].values.clone()
    with pytest.raises(ModelError, match="create the training client with the checkpoint's"):
        backend.load("wide", tmp_path / "saved", optimizer=False)
    with pytest.raises(ModelError, match="cannot read the checkpoint"):
        backend.load("m", tmp_path / "saved", optimizer=True)  # saved without optimizer state
    assert torch.equal(before, backend.adapters["wide"].values)


def test_a_full_disk_leaves_nothing_half_written(model_directory, tmp_path, monkeypatch):
    backend = backend_with(model_directory("qwen3"))
    backend.save("m", tmp_path / "saved", optimizer=True)
    good = (tmp_path / "saved" / "adapter_model.safetensors").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tinsmith.service.engine.weights._sync", full)
    randomise(backend)
    with pytest.raises(StorageError, match="Free some disk space"):
        backend.save("m", tmp_path / "saved", optimizer=True)
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]
    assert (tmp_path / "saved" / "adapter_model.safetensors").read_bytes() == good
