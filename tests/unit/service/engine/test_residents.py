"""Several base models under one memory budget: who is loaded, who leaves, who waits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.service.engine.conftest import make_items
from tinsmith.errors import ModelError, RequestError
from tinsmith.service.engine.backend import (
    AdamSpec,
    Finished,
    LoraSpec,
    LossSpec,
    PassResult,
    SampleJob,
    SampleResult,
)
from tinsmith.service.engine.kv_cache import BLOCK, KVCache
from tinsmith.service.engine.memory import cgroup_limit, default_budget, weights_bytes
from tinsmith.service.engine.model import read_config
from tinsmith.service.engine.torch_backend import TorchBackend

CPU = torch.device("cpu")
LOSS = LossSpec("cross_entropy", {})


@pytest.fixture
def names(model_directory) -> list[str]:
    return [str(model_directory(kind)) for kind in ("qwen3", "qwen2-tied", "llama-gqa")]


def need(name: str) -> int:
    """Weights, and a cache for one sequence of full length."""
    config = read_config(Path(name) / "config.json")
    a_token = KVCache.bytes_per_token(config, torch.float32)
    return weights_bytes(config, torch.float32, CPU) + (config.max_context + 2 * BLOCK) * a_token


def backend_for(*names: str) -> TorchBackend:
    """One with room for exactly these at once."""
    return TorchBackend(device="cpu", dtype="float32", memory=sum(map(need, names)))


def job(name: str, count: int = 6, weights: str | None = None) -> SampleJob:
    return SampleJob(name, weights, (1, 2, 3), max_tokens=count, temperature=0.0, stop=())


def finish(backend: TorchBackend) -> dict[str, SampleResult]:
    results: dict[str, SampleResult] = {}
    while backend.sampling:
        check_budget(backend)
        for done in backend.step():
            assert isinstance(done, Finished)
            assert isinstance(done.result, SampleResult), done.result
            results[done.job_id] = done.result
    return results


def check_budget(backend: TorchBackend) -> None:
    report = backend.memory_report()
    assert report["weights"] + report["cache"] <= report["budget"]
    assert set(report["bases"]) == set(backend.bases)


def test_the_longest_unused_model_leaves(names):
    first, second, third = names
    backend = backend_for(
        first, first, first
    )  # the first takes half of it, the second what it needs
    for name in (first, second, first):
        assert backend.residents.get(name) is not None
    assert list(backend.bases) == [second, first]
    assert backend.residents.get(third) is not None
    assert second not in backend.bases
    check_budget(backend)


def test_the_weights_of_a_model_are_as_large_as_reckoned(names):
    for name in names:
        found = TorchBackend(device="cpu", dtype="float32").residents.get(name)
        assert found is not None
        base = found[0]
        tensors = [base.embedding, base.head.weight, base.final_norm, base.cos, base.sin]
        for layer in base.layers:
            tensors += [layer.input_norm, layer.mlp_norm]
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
                tensors += [linear.weight, *([] if linear.bias is None else [linear.bias])]
        size = sum(tensor.nbytes for tensor in tensors)
        assert weights_bytes(base.config, torch.float32, CPU) == pytest.approx(size, rel=0.01)


def test_samples_in_flight_keep_their_model_and_others_wait(names):
    first, second, _ = names
    alone = {name: TorchBackend(device="cpu", dtype="float32") for name in names}
    for name, one in alone.items():
        one.add(name, job(name))
    expected = {name: finish(one)[name].sequences for name, one in alone.items()}

    backend = backend_for(first)
    backend.add("a", job(first))
    backend.step()
    backend.add("b", job(second))
    backend.add("c", job(first))  # does not overtake
    assert list(backend.bases) == [first]
    order: list[str] = []
    while backend.sampling:
        check_budget(backend)
        order += [done.job_id for done in backend.step()]
    assert order == ["a", "b", "c"]
    backend.add("b", job(second))
    backend.add("a", job(first))
    results = finish(backend)
    assert results["a"].sequences == expected[first]
    assert results["b"].sequences == expected[second]


def test_all_that_wait_for_a_model_come_in_together(names):
    first, second, _ = names
    backend = backend_for(first)
    backend.add("a", job(first, 2))
    for index, name in enumerate([second, first] * 3):
        backend.add(f"{index}", job(name, 3))
    loads: list[str] = []
    while backend.sampling:
        backend.step()
        loads += [name for name in backend.bases if loads[-1:] != [name]]
    assert loads == [first, second, first]


def test_a_pass_waits_for_room_and_is_not_disturbed(names):
    first, second, _ = names
    backend = backend_for(first)
    backend.create("m", LoraSpec(second, rank=2, seed=0))
    items = make_items(0, [7, 9])
    *_, alone = backend.run_pass("m", items, LOSS, backward=False)

    backend.add("a", job(first, 4))
    steps = backend.run_pass("m", items, LOSS, backward=True)
    assert next(steps) == 0.0
    backend.add("late", job(first, 4))  # else the pass might wait forever
    done = []
    while not done:
        assert next(steps) == 0.0
        done = backend.step()
    assert [item.job_id for item in done] == ["a"]
    assert isinstance(next(steps), float)
    assert list(backend.bases) == [second]
    assert backend.step() == []  # "late" waits for the pass
    assert list(backend.bases) == [second]
    *_, result = steps
    assert isinstance(result, PassResult)
    assert isinstance(alone, PassResult)
    np.testing.assert_array_equal(result.outputs[0]["logprobs"], alone.outputs[0]["logprobs"])
    assert set(finish(backend)) == {"late"}
    assert list(backend.bases) == [first]


def test_an_abandoned_pass_holds_nothing(names):
    first, second, _ = names
    backend = backend_for(first)
    backend.create("m", LoraSpec(first, rank=2, seed=0))
    steps = backend.run_pass("m", make_items(0, [7]), LOSS, backward=True)
    next(steps)
    assert backend.residents.get(second) is None
    del steps
    assert backend.residents.get(second) is not None


def test_adapters_outlive_their_base_model(names):
    """Training that is interrupted by another model gives the same numbers."""

    def train(backend: TorchBackend, other: str | None) -> list[float]:
        losses: list[float] = []
        backend.create("m", LoraSpec(names[0], rank=2, seed=0))
        for step in range(3):
            *_, result = backend.run_pass("m", make_items(step, [9, 5]), LOSS, backward=True)
            assert isinstance(result, PassResult)
            losses.append(result.metrics["loss:sum"])
            if other is not None:
                backend.residents.get(other)
                assert names[0] not in backend.bases
            backend.optim_step("m", AdamSpec(learning_rate=0.01))
            backend.freeze("m", f"w{step}")
        backend.add("job", job(names[0], weights="w1"))
        return [*losses, *finish(backend)["job"].sequences[0].logprobs]

    assert train(backend_for(names[0]), names[1]) == train(backend_for(*names), None)


def test_a_waiting_sample_can_be_cancelled_and_can_fail_alone(names):
    first, second, _ = names
    backend = backend_for(first)
    backend.add("a", job(first, 3))
    backend.add("gone", job(second))
    backend.add("wrong", SampleJob(second, None, (1, 2), max_tokens=4, stop=("x",)))  # no tokenizer
    backend.add("right", job(second, 2))
    backend.cancel("gone")
    results = {}
    while backend.sampling:
        results |= {done.job_id: done.result for done in backend.step()}
    assert set(results) == {"a", "wrong", "right"}
    assert isinstance(results["wrong"], ModelError)
    assert isinstance(results["right"], SampleResult)


def test_a_model_that_never_fits_is_refused_with_the_figures(names):
    first, second, _ = names
    backend = TorchBackend(device="cpu", dtype="float32", memory=100_000)
    for call in (
        lambda: backend.create("m", LoraSpec(first, rank=2, seed=0)),
        lambda: backend.add("job", job(second)),
    ):
        with pytest.raises(ModelError, match=r"needs 1\.\d MB .* may take 0\.1 MB"):
            call()
    assert not backend.sampling
    with pytest.raises(RequestError, match="not loaded"):
        backend.run_pass("m", make_items(0, [3]), LOSS, backward=True)


def test_the_budget_respects_control_groups(tmp_path):
    own = tmp_path / "cgroup"
    group = tmp_path / "sys" / "a" / "b"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    own.write_text("0::/a/b\n")
    assert cgroup_limit(tmp_path / "sys", own) is None
    (group.parent / "memory.max").write_text("5000\n")
    (tmp_path / "sys" / "memory.max").write_text("9000\n")
    assert cgroup_limit(tmp_path / "sys", own) == 5000
    old = tmp_path / "sys" / "memory" / "docker"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("3000\n")
    own.write_text("12:cpu,cpuacct:/docker\n5:memory:/docker\n")
    assert cgroup_limit(tmp_path / "sys", own) == 3000
    own.write_text("5:memory:/elsewhere/on/the/host\n")
    (old.parent / "memory.limit_in_bytes").write_text("4000\n")
    assert cgroup_limit(tmp_path / "sys", own) == 4000
    assert cgroup_limit(tmp_path / "sys", tmp_path / "none") is None
    assert 0 < default_budget(CPU) <= (cgroup_limit() or 1 << 60)
