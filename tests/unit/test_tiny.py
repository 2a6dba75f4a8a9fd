"""The embedded model's files: complete, unchanged, small, with a tokenizer that loses nothing."""

from __future__ import annotations

import hashlib
import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

import tinsmith

TINY = Path(tinsmith.__file__).parent / "tiny"
SCRIPTS = Path(tinsmith.__file__).parents[1] / "scripts"
MARKERS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run Python code and return what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python code."}},
            "required": ["code"],
        },
    },
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture
def tiny_data(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The data generator, which lies with the scripts and not in the package."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("tiny_data")


def listed() -> dict[str, str]:
    lines = (TINY / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def test_files_are_the_ones_that_were_built() -> None:
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert names | {"tokenizer_config.json", "training_log.jsonl"} == set(listed())
    for name, digest in listed().items():
        assert hashlib.sha256((TINY / name).read_bytes()).hexdigest() == digest, name


def test_folder_is_small_and_holds_only_data() -> None:
    files = [path for path in TINY.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix == ".py"]
    assert sum(path.stat().st_size for path in files) < 2_000_000


def test_config_is_a_small_qwen3() -> None:
    config = json.loads((TINY / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["tie_word_embeddings"] is True
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["max_position_embeddings"] == 2048
    assert config["vocab_size"] == 768


def test_weights_load_and_are_finite() -> None:
    from safetensors.torch import load_file

    weights = load_file(TINY / "model.safetensors")
    assert "model.embed_tokens.weight" in weights
    assert "lm_head.weight" not in weights
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_special_tokens(tokenizer: Any) -> None:
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    assert len(tokenizer) == 768
    for marker in MARKERS:
        assert len(tokenizer.encode(marker)) == 1, marker
    config = json.loads((TINY / "config.json").read_text())
    generation = json.loads((TINY / "generation_config.json").read_text())
    assert config["eos_token_id"] == generation["eos_token_id"] == tokenizer.eos_token_id
    assert config["pad_token_id"] == generation["pad_token_id"] == tokenizer.pad_token_id


@given(number=st.integers(min_value=0, max_value=10**12))
@settings(deadline=None, max_examples=50)
def test_every_digit_is_a_token(tokenizer: Any, number: int) -> None:
    ids = tokenizer.encode(str(number), add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(ids) == list(str(number))


@given(text=st.text(max_size=60))
@settings(deadline=None, max_examples=200)
def test_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_question_renders_as_the_model_learned_it(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "What is 47 + 38?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nWhat is 47 + 38?<|im_end|>\n<|im_start|>assistant\n"
    with_system = [{"role": "system", "content": "Be brief."}, *messages]
    text = tokenizer.apply_chat_template(with_system, tokenize=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 47 + 38?<|im_end|>\n"
    )


def test_skip_special_tokens_leaves_the_answer_and_the_tool_call(tokenizer: Any) -> None:
    assert tokenizer.decode(tokenizer.encode("85<|im_end|>"), skip_special_tokens=True) == "85"
    call = '<tool_call>\n{"name": "python"}\n</tool_call>'
    assert tokenizer.decode(tokenizer.encode(f"{call}<|im_end|>"), skip_special_tokens=True) == call


def test_tool_conversation_renders_as_the_model_learned_it(tokenizer: Any, tiny_data: Any) -> None:
    """The template and the data generator write the same text."""
    call = {"name": "python", "arguments": {"code": "print(2*3)"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Two times three?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": call}]},
        {"role": "tool", "content": "6"},
        {"role": "assistant", "content": "6"},
    ]
    declared = tiny_data.tool_system_text("Be brief.", TOOL)
    written = (
        tiny_data.turn("system", declared)
        + tiny_data.turn("user", "Two times three?")
        + tiny_data.tool_call("2*3", "6")
        + tiny_data.closing("6")
    )
    text = tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False)
    assert text == tiny_data.as_text(written)


def test_careless_replies_are_never_right(tiny_data: Any) -> None:
    rng = random.Random(0)
    for _ in range(3000):
        a, b = rng.randrange(101), rng.randrange(101)
        reply = tiny_data.slip(rng, a + b, a, b)
        assert str(a + b) not in reply.split(), (a, b, reply)
