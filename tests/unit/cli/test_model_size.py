"""The memory estimate agrees with what the engine says of itself, and asks nothing but the model's files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tinsmith.cli import model_size
from tinsmith.cli.model_size import Load, Shape, local_directory, memory, read_shape

LOAD = Load(rows=8, row_tokens=100, batch_tokens=500, lora_rank=16, versions=1)


def tiny() -> Shape:
    directory = local_directory("tinsmith/tiny")
    assert directory is not None
    shape = read_shape(directory)
    assert shape is not None
    return shape


def write_model(directory: Path, **changes: object) -> Path:
    directory.mkdir()
    config: dict[str, object] = {
        "vocab_size": 100,
        "hidden_size": 8,
        "intermediate_size": 20,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config | changes))
    return directory


def write_tensors(file: Path, shapes: dict[str, list[int]]) -> None:
    header = {name: {"dtype": "F32", "shape": shape} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)


def test_the_figures_are_those_of_the_engine() -> None:
    import torch

    from tinsmith.service.engine import memory as engine_memory
    from tinsmith.service.engine import residents, sampler, training
    from tinsmith.service.engine.backend import LoraSpec
    from tinsmith.service.engine.kv_cache import KVCache
    from tinsmith.service.engine.lora import Adapter
    from tinsmith.service.engine.model import describe, read_config

    shape = tiny()
    config = read_config(describe("tinsmith/tiny").directory / "config.json")
    parts = {part.what: part.bytes for part in memory(shape, LOAD, device="cpu", value_bytes=4)}
    trained = model_size.adapter_parameters(shape, 16) * model_size.ADAM_BYTES
    assert trained == Adapter.bytes_of(
        config, LoraSpec(base_model="tinsmith/tiny", rank=16, seed=0)
    )
    assert parts["adapter"] + parts["optimizer"] == trained + trained // 4
    assert parts["KV cache"] == 800 * KVCache.bytes_per_token(config, torch.float32)
    engine = engine_memory.weights_bytes(config, torch.float32, torch.device("cpu"))
    rope = 2 * config.max_context * config.head_dim * 4
    assert parts["model weights"] == pytest.approx(engine - rope, rel=0.01)
    assert (model_size.MAX_ROWS, model_size.CACHE_TOKENS) == (
        sampler.MAX_ROWS,
        residents.CACHE_TOKENS,
    )
    assert model_size.ACTIVATION_BYTES == training.ACTIVATION_BYTES


def test_parameters_are_counted_where_there_are_weights_and_computed_where_not(
    tmp_path: Path,
) -> None:
    directory = write_model(tmp_path / "model")
    shape = read_shape(directory)
    assert shape is not None
    # a layer: q 64, k and v 32 each, o 64, three of 160, two norms of 8; two tables of 800; a norm of 8
    assert (shape.parameters, shape.counted) == (3 * (192 + 480 + 16) + 1600 + 8, False)
    write_tensors(directory / "model-1.safetensors", {"a": [3, 4], "b": [5]})
    write_tensors(directory / "model-2.safetensors", {"c": []})
    assert read_shape(directory) == replace(shape, parameters=18, counted=True)
    assert tiny().counted


def test_a_tied_model_has_one_table(tmp_path: Path) -> None:
    one = read_shape(write_model(tmp_path / "one", tie_word_embeddings=True))
    two = read_shape(write_model(tmp_path / "two"))
    assert one is not None
    assert two is not None
    assert (two.parameters or 0) - (one.parameters or 0) == 800


@pytest.mark.parametrize("damage", [b"", b"\xff" * 9, b"\x02" + b"\0" * 7 + b"no", b"\0" * 8])
def test_damaged_weights_are_computed_instead(damage: bytes, tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model")
    (directory / "model.safetensors").write_bytes(damage)
    shape = read_shape(directory)
    assert shape is not None
    assert not shape.counted


def test_the_weights_of_experts_are_not_guessed(tmp_path: Path) -> None:
    shape = read_shape(write_model(tmp_path / "model", num_experts=128))
    assert shape is not None
    assert shape.parameters is None
    assert "model weights" not in [p.what for p in memory(shape, LOAD, device="cpu", value_bytes=4)]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"hidden_size": 8}'])
def test_what_is_no_config_gives_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert read_shape(tmp_path) is None


def test_models_that_are_not_here_are_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert local_directory("nobody/no-model") is None
    assert local_directory("no such/name at all") is None
    assert local_directory(str(tmp_path / "missing.gguf")) is None
    assert local_directory(str(write_model(tmp_path / "model"))) == tmp_path / "model"


def test_what_the_service_does_not_take_at_once_waits() -> None:
    shape = tiny()
    many = replace(LOAD, rows=5000, row_tokens=1000, batch_tokens=10**9)
    parts = {part.what: part for part in memory(shape, many, device="cpu", value_bytes=4)}
    a_token = shape.layers * 2 * shape.kv * 4
    assert parts["KV cache"].bytes == model_size.CACHE_TOKENS * a_token
    assert "1,024 rollouts" in parts["KV cache"].why
    assert "further ones wait" in parts["KV cache"].why
    assert parts["activations"].bytes <= model_size.ACTIVATION_BYTES["cpu"]
    assert "several passes" in parts["activations"].why
