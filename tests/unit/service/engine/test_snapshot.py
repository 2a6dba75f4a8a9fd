"""A captured state is the adapter to the bit, and a damaged file never passes for one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinsmith.errors import ModelError
from tinsmith.service.engine.backend import AdamSpec, LoraSpec, LossSpec, TrainItem
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

SPEC = LoraSpec(EMBEDDED_MODEL, rank=2, seed=1)
BUFFERS = ("values", "gradient", "moment1", "moment2")


def run_pass(backend: TorchBackend, model: str) -> None:
    tokens = np.arange(5, 17)
    item = TrainItem(tokens[:-1], {"target_tokens": tokens[1:]})
    list(backend.run_pass(model, [item], LossSpec("cross_entropy", {}), backward=True))


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    backend = TorchBackend(device="cpu")
    backend.create("m", SPEC)
    for _ in range(2):
        run_pass(backend, "m")
        backend.optim_step("m", AdamSpec(learning_rate=0.01))
    return backend


@pytest.mark.parametrize("gradient", [False, True])
def test_there_and_back(backend: TorchBackend, tmp_path: Path, gradient: bool) -> None:
    backend.adapters["m"].gradient.zero_()
    if gradient:
        run_pass(backend, "m")
    write = backend.capture("m")
    kept = {name: getattr(backend.adapters["m"], name).clone() for name in BUFFERS}
    run_pass(backend, "m")
    backend.optim_step("m", AdamSpec(learning_rate=0.01))
    write(tmp_path / "state")
    backend.restore("copy", SPEC, tmp_path / "state")
    copy = backend.adapters["copy"]
    assert all(torch.equal(getattr(copy, name), kept[name]) for name in BUFFERS)
    assert copy.steps == backend.adapters["m"].steps - 1
    assert bool(kept["gradient"].any()) == gradient
    with pytest.raises(ModelError, match="another model"):
        backend.restore("other", LoraSpec(EMBEDDED_MODEL, rank=2, seed=2), tmp_path / "state")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_any_damage_is_found(
    backend: TorchBackend, tmp_path: Path, where: float, bit: int, cut: bool
) -> None:
    file = tmp_path / "state"
    backend.capture("m")(file)
    whole = file.read_bytes()
    place = int(where * len(whole))
    flipped = whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :]
    file.write_bytes(whole[:place] if cut else flipped)
    try:
        backend.check(file)
    except ModelError:
        return
    # A changed name or blank in the header may leave a file that means the same.
    backend.restore("back", SPEC, file)
    for name in BUFFERS:
        assert torch.equal(
            getattr(backend.adapters["back"], name), getattr(backend.adapters["m"], name)
        )
    assert backend.adapters["back"].steps == backend.adapters["m"].steps
