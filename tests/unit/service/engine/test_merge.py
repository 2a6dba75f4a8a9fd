"""Saved adapters in PEFT, and merged into a whole model, against the engine's own log-probabilities."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors import safe_open

from tests.unit.service.engine.conftest import make_items
from tests.unit.service.engine.test_against_transformers import backend_with, randomise, run
from tinsmith.errors import ConfigError, ModelError
from tinsmith.service.engine import merge as merging
from tinsmith.service.engine.merge import merge

# tied; untied with biases; untied in several files; tied with other rope
KINDS = ("qwen3", "qwen2-biases", "llama-gqa", "llama-llama3-rope")
PARTS = [parts for parts in itertools.product((True, False), repeat=3) if any(parts)]


def saved(directory: Path, to: Path, parts: tuple[bool, bool, bool] = (True, True, True)):
    """A random adapter's directory, and items with the engine's log-probabilities of them."""
    attn, mlp, unembed = parts
    backend = backend_with(directory, train_attn=attn, train_mlp=mlp, train_unembed=unembed)
    randomise(backend)
    backend.save("m", to, optimizer=True)
    items = make_items(2, [33, 5, 60])
    return items, [out["logprobs"] for out in run(backend, items, backward=False).outputs]


def check(model, items, expected, atol: float = 1e-4) -> None:
    for item, logprobs in zip(items, expected, strict=True):
        with torch.no_grad():
            logits = model(torch.from_numpy(item.tokens)[None]).logits[0].float()
        found = logits.log_softmax(-1)[range(len(item.tokens)), item.inputs["target_tokens"]]
        np.testing.assert_allclose(found, logprobs, atol=atol, rtol=0)


def load(directory: Path):
    return transformers.AutoModelForCausalLM.from_pretrained(directory)


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_peft_and_merged_models_give_the_engines_logprobs(kind, parts, model_directory, tmp_path):
    items, expected = saved(model_directory(kind), tmp_path / "adapter", parts)
    base = load(model_directory(kind))
    check(peft.PeftModel.from_pretrained(base, tmp_path / "adapter"), items, expected)

    merge(tmp_path / "adapter", tmp_path / "merged")
    merged = load(tmp_path / "merged")
    check(merged, items, expected)
    tied = kind in ("qwen3", "llama-llama3-rope") and not parts[2]
    assert merged.config.tie_word_embeddings is tied
    shared = merged.get_input_embeddings().weight is merged.get_output_embeddings().weight
    assert shared is tied


def test_the_adapter_matters(model_directory, tmp_path):
    """The base alone gives other log-probabilities, so the tests above can fail."""
    items, expected = saved(model_directory("qwen3"), tmp_path / "adapter")
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(load(model_directory("qwen3")), items, expected)


def test_a_dtype_can_be_chosen(model_directory, tmp_path):
    items, expected = saved(model_directory("qwen3"), tmp_path / "adapter")
    merge(tmp_path / "adapter", tmp_path / "merged", "bfloat16")
    merged = load(tmp_path / "merged")
    assert merged.dtype is torch.bfloat16
    check(merged, items, expected, atol=0.5)


def test_large_models_come_in_several_files(model_directory, tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "SHARD_BYTES", 40_000)
    items, expected = saved(model_directory("qwen3"), tmp_path / "adapter")
    seen: list[tuple[int, int]] = []
    merge(tmp_path / "adapter", tmp_path / "merged", progress=lambda *at: seen.append(at))
    files = sorted((tmp_path / "merged").glob("model-*.safetensors"))
    index = json.loads((tmp_path / "merged/model.safetensors.index.json").read_text())
    assert len(files) == len(set(index["weight_map"].values())) > 2
    for file in files:
        with safe_open(file, "pt") as tensors:
            assert {index["weight_map"][name] for name in tensors.keys()} == {file.name}  # noqa: SIM118
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    check(load(tmp_path / "merged"), items, expected)


def test_what_belongs_to_the_model_is_copied(model_directory, tmp_path):
    base = model_directory("qwen2-tied")
    (base / "tokenizer_config.json").write_text("{}")
    saved(base, tmp_path / "adapter")
    merge(tmp_path / "adapter", tmp_path / "merged")
    names = {file.name for file in (tmp_path / "merged").iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer_config.json"} < names


def test_wrong_adapters_are_refused_in_words(model_directory, tmp_path):
    with pytest.raises(ModelError, match="is not an adapter that can be read"):
        merge(tmp_path, tmp_path / "merged")
    saved(model_directory("qwen3"), tmp_path / "adapter")
    with pytest.raises(ConfigError, match="dtype must be one of"):
        merge(tmp_path / "adapter", tmp_path / "merged", "int4")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    config["base_model_name_or_path"] = "tinsmith/tiny"
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="is it the right base model"):
        merge(tmp_path / "adapter", tmp_path / "merged")
