"""Small random models of every supported kind, as Hugging Face directories and as oracles."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tinsmith.service.engine.backend import TrainItem

COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
    "eos_token_id": 1,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}),
    "qwen3-untied-yarn": (
        "Qwen3",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "tie_word_embeddings": False,
            "rope_parameters": YARN,
        },
    ),
    "qwen2-biases": ("Qwen2", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "qwen2-tied": (
        "Qwen2",
        {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "llama-gqa": ("Llama", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "llama-llama3-rope": (
        "Llama",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "rope_parameters": LLAMA3,
            "tie_word_embeddings": True,
        },
    ),
    "llama-linear-rope-biases": (
        "Llama",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": LINEAR,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
}


@lru_cache
def _oracle(kind: str) -> transformers.PreTrainedModel:
    family, options = KINDS[kind]
    torch.manual_seed(sum(map(ord, kind)))
    config = getattr(transformers, f"{family}Config")(
        **COMMON, **{"tie_word_embeddings": family == "Qwen3"} | options
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for name, parameter in model.named_parameters():  # norms and biases away from 1 and 0
        if "norm" in name or name.endswith("bias"):
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a random model of this kind, saved by transformers."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            # three shards for one kind, so that both layouts are read
            size = "50KB" if kind == "llama-gqa" else "5GB"
            _oracle(kind).save_pretrained(made[kind], max_shard_size=size)
        return made[kind]

    return make


@pytest.fixture(scope="session")
def oracle() -> Callable[[str], transformers.PreTrainedModel]:
    """The same model in transformers."""
    return _oracle


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_items(seed: int, lengths: list[int], vocab: int = 96) -> list[TrainItem]:
    """Random sequences with inputs for every loss."""
    random = np.random.default_rng(seed)
    items: list[TrainItem] = []
    for length in lengths:
        tokens = random.integers(0, vocab, length + 1)
        items.append(
            TrainItem(
                tokens[:-1],
                {
                    "target_tokens": tokens[1:],
                    "weights": random.normal(size=length).astype(np.float32),
                    "logprobs": random.normal(-4, 0.3, length).astype(np.float32),
                    "advantages": random.normal(size=length).astype(np.float32),
                },
            )
        )
    return items
