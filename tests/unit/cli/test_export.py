"""`tinsmith export`: what it writes gives the service's own log-probabilities, and it overwrites nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers

from tinsmith.cli import main as cli
from tinsmith.service.engine.backend import LoraSpec, LossSpec, PassResult, TrainItem
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.service.store.checkpoints import CheckpointShelf
from tinsmith.service.store.store import Store
from tinsmith.settings import EMBEDDED_MODEL

TOKENS = np.asarray([72, 101, 108, 108, 111, 32, 116, 104])
PATH = "tinker://s1:train:0/weights/final"


@dataclass(frozen=True)
class Saved:
    service: Path
    logprobs: np.ndarray
    base: Path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    """A service's directory with one trained checkpoint; its database is open, as a running one's."""
    directory = tmp_path_factory.mktemp("service")
    store = Store.open(directory / "service.sqlite")
    backend = TorchBackend(device="cpu", dtype="float32", threads=1)
    spec = LoraSpec(EMBEDDED_MODEL, rank=4, seed=1)
    backend.create("m", spec)
    values = backend.adapters["m"].values
    values.copy_(torch.randn(values.shape, generator=torch.Generator().manual_seed(0)) * 0.1)
    shelf = CheckpointShelf(directory / "checkpoints", store)
    with shelf.writing(PATH, base_model=EMBEDDED_MODEL, spec=asdict(spec)) as staged:
        backend.save("m", staged, optimizer=True)
    item = TrainItem(TOKENS[:-1], {"target_tokens": TOKENS[1:], "weights": np.ones(7, np.float32)})
    *_, result = backend.run_pass("m", [item], LossSpec("cross_entropy", {}), backward=False)
    assert isinstance(result, PassResult)
    base = backend.describe(EMBEDDED_MODEL).directory
    yield Saved(directory, np.asarray(result.outputs[0]["logprobs"]), base)
    store.close()


def check(model, saved: Saved) -> None:
    with torch.no_grad():
        logits = model(torch.from_numpy(TOKENS[None, :-1])).logits[0].float()
    found = logits.log_softmax(-1)[range(len(TOKENS) - 1), TOKENS[1:]]
    np.testing.assert_allclose(found, saved.logprobs, atol=1e-4, rtol=0)


def export(saved: Saved, *arguments: str) -> int:
    return cli.main(["export", *arguments, "--directory", str(saved.service)])


def test_an_adapter_for_peft(saved, tmp_path, capsys):
    out = tmp_path / "deep" / "adapter"
    assert export(saved, PATH, str(out)) == 0
    assert {file.name for file in out.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert "AutoPeftModelForCausalLM.from_pretrained(" in capsys.readouterr().out
    check(peft.AutoPeftModelForCausalLM.from_pretrained(out, dtype=torch.float32), saved)
    base = transformers.AutoModelForCausalLM.from_pretrained(saved.base, dtype=torch.float32)
    check(peft.PeftModel.from_pretrained(base, out), saved)


def test_a_whole_model_for_transformers(saved, tmp_path, capsys):
    out = tmp_path / "model"
    assert export(saved, PATH, str(out), "--merged", "--dtype", "float32") == 0
    check(transformers.AutoModelForCausalLM.from_pretrained(out), saved)
    text = "Hello"
    ours, theirs = (transformers.AutoTokenizer.from_pretrained(at) for at in (out, saved.base))
    assert ours.encode(text) == theirs.encode(text)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]  # nothing is left beside it


def test_a_directory_instead_of_a_path(saved, tmp_path):
    assert export(saved, PATH, str(tmp_path / "adapter")) == 0
    arguments = [str(tmp_path / "adapter"), str(tmp_path / "model"), "--merged"]
    assert cli.main(["export", *arguments]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    base = transformers.AutoModelForCausalLM.from_pretrained(saved.base)
    assert model.dtype == base.dtype


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tinker://s1:train:0/weights/other"], f"the newest is {PATH}"),
        (["tinker://s1:train:0/weights/../final"], "is not a checkpoint path"),
        (["tinker://s1:train:0/weights/.."], "is not a checkpoint path"),
        (["/nowhere"], "is no directory"),
        ([PATH, "--dtype", "float32"], "--dtype needs --merged"),
        ([PATH, "--merged", "--dtype", "int4"], "dtype must be one of"),
        ([PATH, "--quick"], "No such option"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_left(saved, tmp_path, capsys, arguments, words):
    path, *options = arguments
    assert export(saved, path, str(tmp_path / "out"), *options) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(saved, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert export(saved, PATH, str(tmp_path / "out")) == 2
    assert "is there already" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


def test_a_place_without_a_service(tmp_path, capsys):
    arguments = [PATH, str(tmp_path / "out"), "--directory", str(tmp_path)]
    assert cli.main(["export", *arguments]) == 2
    assert "there is no service in" in capsys.readouterr().err


def test_a_place_that_cannot_be_written(saved, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert export(saved, PATH, str(tmp_path / "file" / "out")) == 1
    assert "could not be written" in capsys.readouterr().err
