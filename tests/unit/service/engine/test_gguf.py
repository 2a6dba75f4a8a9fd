"""GGUF files: every block format, the conversion and the tokenizer, against the gguf package and transformers."""

from __future__ import annotations

import json
import multiprocessing
import struct
from pathlib import Path

import gguf.quants
import numpy as np
import pytest
import torch
import transformers

from tests.unit.service.engine.gguf_files import (
    CONTROL,
    TEMPLATE,
    model_metadata,
    random_blocks,
    random_tensors,
    tokenizer_metadata,
    write_gguf,
    write_model,
)
from tinsmith.errors import ModelError, StorageError
from tinsmith.service.engine import gguf_convert, gguf_quants
from tinsmith.service.engine.gguf import open_gguf
from tinsmith.service.engine.gguf_convert import gguf_directory, gguf_weights
from tinsmith.service.engine.gguf_quants import FORMATS, dequantise

TEXTS = [
    "hello world",
    "Hello  world\n\n  x\ty ",
    "It's 12 o'clock, 12345 cats; don't!",
    "naïve Zürich, 東京, 🦜, ½ and ٣",
    "<|im_start|>user\nhello<|im_end|><think>hm</think>",
    "def f(x):\n    return x + 1\r\n",
    "",
]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("number", FORMATS)
def test_every_block_format_equals_the_gguf_package(number, monkeypatch):
    block = FORMATS[number]
    monkeypatch.setattr(gguf_quants, "CHUNK_VALUES", 1024)  # so that several chunks are read
    raw = random_blocks(block, 256 * 21, np.random.default_rng(number))
    flat = np.frombuffer(raw, np.uint8)
    kind = gguf.GGMLQuantizationType(number)
    assert kind.name == block.name
    assert gguf.GGML_QUANT_SIZES[kind] == (block.values, block.size)
    expected = gguf.quants.dequantize(flat, kind).reshape(-1)
    values = dequantise(flat, block)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, expected.astype(np.float32))
    assert np.std(values) > 0.001


FILES = {
    "llama": ("llama", ["Q8_0", "F16", "Q4_1", "Q6_K"], {}),
    "llama-tied": ("llama", ["Q4_K", "Q5_0"], {"tied": True}),
    "qwen2": ("qwen2", ["Q5_K", "Q4_0", "BF16"], {"tied": True}),
    "qwen3": ("qwen3", ["Q3_K", "Q2_K", "Q5_1", "F32"], {}),
}


@pytest.mark.parametrize("name", FILES)
def test_logits_and_tokens_equal_transformers(name, tmp_path):
    """Its own reading of the GGUF file against our directory, read by transformers like any other."""
    family, kinds, options = FILES[name]
    file = write_model(tmp_path / "tiny.gguf", family, kinds, **options)
    directory = gguf_directory(file)
    gguf_weights(directory, file)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    )
    ours, loading = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    assert not any(loading.values()), loading
    tokens = torch.randint(0, ours.config.vocab_size, (2, 40), generator=torch.manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-4, atol=1e-4)
    mine = transformers.AutoTokenizer.from_pretrained(directory)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    for text in TEXTS:
        assert mine.encode(text) == other.encode(text), text
    assert mine.chat_template == TEMPLATE
    assert (mine.bos_token, mine.eos_token) == (CONTROL[1], CONTROL[2])
    assert ours.generation_config.eos_token_id == [mine.eos_token_id, mine.pad_token_id]


def test_words_are_cut_as_the_file_says(tmp_path):
    """SmolLM2 cuts numbers into digits before anything else; Llama 3 begins every text with its own token."""
    cut = {
        pre: transformers.AutoTokenizer.from_pretrained(
            gguf_directory(write_model(tmp_path / f"{pre}.gguf", "llama", ["F16"], pre=pre))
        )
        for pre in ("smollm", "gpt-2", "llama-bpe", "qwen2")
    }
    assert cut["smollm"].tokenize("  12") == ["ĠĠ", "1", "2"]
    assert cut["gpt-2"].tokenize("  12") == ["Ġ", "Ġ", "12"]
    assert cut["qwen2"].tokenize("12") == ["1", "2"]
    assert cut["llama-bpe"].tokenize("12") == ["12"]
    assert cut["llama-bpe"].decode(cut["llama-bpe"].encode("hello")) == "<|im_start|>hello"
    assert cut["qwen2"].encode("e\u0301") == cut["qwen2"].encode("é")
    for tokenizer in cut.values():
        for text in TEXTS:
            assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_rope_scaling_is_kept(tmp_path):
    """transformers' own reading of GGUF files leaves it out, so the configuration itself is compared."""
    scaling = {"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}
    for kind in ("linear", "yarn"):
        options = {"rope.scaling.type": kind, **scaling}
        directory = gguf_directory(write_model(tmp_path / "m.gguf", "llama", ["F16"], **options))
        assert json.loads((directory / "config.json").read_text())["rope_parameters"] == {
            "rope_type": kind,
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }


def test_llama3_rope_is_known_by_its_factors(tmp_path):
    head, theta, factor = 64, 500000.0, 32.0
    settings = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = transformers.LlamaConfig(head_dim=head, rope_parameters=settings)
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = theta ** -(torch.arange(0, head, 2) / head)
    divisors = (plain / scaled).numpy().astype("<f4")

    def convert(name: str, values: np.ndarray) -> Path:
        extra = {"rope_freqs.weight": ("F32", values.shape, values.tobytes())}
        options = {"extra": extra, "rope.freq_base": theta}
        return gguf_directory(write_model(tmp_path / name, "llama", ["F16"], **options))

    made = json.loads((convert("llama3.gguf", divisors) / "config.json").read_text())
    assert made["rope_parameters"] == pytest.approx(settings)
    with pytest.raises(ModelError, match="not those of Llama 3"):
        convert("other.gguf", divisors + np.linspace(0, 1, len(divisors), dtype="<f4"))


def test_large_models_are_written_in_shards(tmp_path, monkeypatch):
    file = write_model(tmp_path / "tiny.gguf", "qwen3", ["F16"], tied=True)
    monkeypatch.setattr(gguf_convert, "SHARD_BYTES", 600_000)
    directory = gguf_directory(file)
    gguf_weights(directory, file)
    names = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(names.values())) > 3
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    assert set(names) == set(model.state_dict()) - {"lm_head.weight"}


def test_a_conversion_that_failed_leaves_nothing_that_counts(tmp_path, monkeypatch):
    file = write_model(tmp_path / "tiny.gguf", "llama", ["Q8_0"])
    directory = gguf_directory(file)

    def full(shard, to):
        to.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(gguf_convert, "_write_shard", full)
        with pytest.raises(StorageError, match="No space left"):
            gguf_weights(directory, file)
    left = directory / f"{gguf_convert.PART_PREFIX}killed"  # by a process that could not clean up
    left.mkdir()
    (left / "0").write_bytes(b"half")
    assert not list(directory.glob("*.safetensors"))
    gguf_weights(directory, file)
    assert [path.name for path in directory.glob("*.safetensors")] == ["model.safetensors"]
    assert not left.exists()


def _convert(file: Path) -> tuple[str, bytes]:
    directory = gguf_directory(file)
    gguf_weights(directory, file)
    return str(directory), (directory / "model.safetensors").read_bytes()


def test_two_processes_convert_the_same_file(tmp_path):
    file = write_model(tmp_path / "tiny.gguf", "llama", ["Q4_0"])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        first, second = pool.map(_convert, [file, file], chunksize=1)
    assert first == second
    assert [path.name for path in Path(first[0]).parent.iterdir()] == [Path(first[0]).name]


def test_another_content_is_another_directory(tmp_path):
    file = write_model(tmp_path / "a.gguf", "llama", ["Q8_0"], seed=1)
    first = gguf_directory(file)
    assert gguf_directory(file) == first
    write_model(file, "llama", ["Q8_0"], seed=2)
    assert gguf_directory(file) != first


def test_damaged_files_are_a_sentence(tmp_path):
    whole = write_model(tmp_path / "whole.gguf", "llama", ["Q8_0"]).read_bytes()
    file = tmp_path / "broken.gguf"
    cuts = [0, 3, 10, 23, 24, 100, 2000, 8000, len(whole) // 2, len(whole) - 100]
    for cut in cuts:
        file.write_bytes(whole[:cut])
        with pytest.raises(ModelError, match=r"broken\.gguf"):
            gguf_directory(file)
    random = np.random.default_rng(0)
    for _ in range(60):  # flipped bytes in the header: read, or refused, and nothing else
        damaged = bytearray(whole)
        for at in random.integers(4, 9000, 8):
            damaged[at] = random.integers(0, 256)
        file.write_bytes(bytes(damaged))
        try:
            open_gguf(file)
        except ModelError:
            continue


def test_what_is_not_supported_is_refused(tmp_path):
    file = tmp_path / "model.gguf"

    def refusal(metadata, tensors) -> str:
        write_gguf(file, metadata, tensors)
        with pytest.raises(ModelError) as caught:
            gguf_weights(gguf_directory(file), file)
        return str(caught.value)

    tokens = tokenizer_metadata("qwen2")
    tensors = random_tensors("llama", ["F16"], 268, tied=True, seed=0)
    llama = model_metadata("llama")
    assert "'gemma2'" in refusal(llama | tokens | {"general.architecture": "gemma2"}, tensors)
    assert "'bloom'" in refusal(llama | tokenizer_metadata("bloom"), tensors)
    assert "'llama'" in refusal(llama | tokenizer_metadata("qwen2", model="llama"), tensors)
    assert "block_count" in refusal(llama | tokens | {"llama.block_count": 0}, tensors)
    assert "'longrope'" in refusal(
        llama | tokens | {"llama.rope.scaling.type": "longrope"}, tensors
    )
    assert "32 of 64" in refusal(llama | tokens | {"llama.rope.dimension_count": 32}, tensors)
    assert "merges" in refusal(llama | tokenizer_metadata("qwen2", merges=["zz yy"]), tensors)
    expert = {"blk.0.ffn_gate_exps.weight": tensors["blk.0.ffn_gate.weight"]}
    assert "ffn_gate_exps" in refusal(llama | tokens, tensors | expert)
    raw = bytearray(write_gguf(file, llama | tokens, tensors).read_bytes())
    at = raw.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    raw[at : at + 4] = struct.pack("<I", 19)  # IQ1_S
    file.write_bytes(bytes(raw))
    with pytest.raises(ModelError, match="quantisation type 19"):
        open_gguf(file)
