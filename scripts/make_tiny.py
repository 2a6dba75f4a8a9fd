"""Rebuild the embedded model from nothing: `python scripts/make_tiny.py --out tinsmith/tiny`."""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tiny_data import Mixture
from tiny_tokenizer import train_tokenizer, write_tokenizer
from tiny_train import Shape, Stage, measure, new_model, run_stage
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

SKILL = Stage(
    name="skill",
    steps=2400,
    lr=3e-3,
    right=1.0,
    mixture=Mixture(sums=192, few_shot=32, variety=32, tool=12),
)
CARELESS = Stage(
    name="careless",
    steps=100,
    lr=5e-4,
    right=0.31,
    mixture=Mixture(sums=192, few_shot=32, variety=32, tool=12),
    warmup=10,
)
SHIPPED = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "training_log.jsonl",
)


class TrainingLog:
    """Prints what happens and keeps it for the shipped log; wall-clock figures are only printed."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, record: dict[str, Any]) -> None:
        print(json.dumps(record), flush=True)
        self.lines.append(json.dumps({k: v for k, v in record.items() if k != "seconds"}))

    def write(self, path: Path) -> None:
        path.write_text("\n".join(self.lines) + "\n")


def write_model(model: Qwen3ForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Weights in bfloat16 with the Hugging Face files beside them."""
    model.to(torch.bfloat16).save_pretrained(out)  # pyright: ignore[reportArgumentType]
    generation = {
        "do_sample": True,
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "max_new_tokens": 64,
        "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "temperature": 1.0,
    }
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    (out / "model.safetensors").chmod(
        0o644
    )  # written for its owner alone, but packaged for everyone


def write_sums(out: Path) -> None:
    lines = [f"{hashlib.sha256((out / name).read_bytes()).hexdigest()}  {name}" for name in SHIPPED]
    (out / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def build(out: Path, seed: int, device: str) -> None:
    """Tokenizer, two stages, figures after each, files."""
    out.mkdir(parents=True, exist_ok=True)
    log = TrainingLog()
    shape = Shape()
    tokenizer = train_tokenizer(seed)
    write_tokenizer(tokenizer, out)
    model = new_model(shape, tokenizer, seed).to(device)  # pyright: ignore[reportArgumentType]
    log(
        {
            "seed": seed,
            "parameters": sum(p.numel() for p in model.parameters()),
            "shape": asdict(shape),
            "torch": torch.__version__,
        }
    )
    for stage in (SKILL, CARELESS):
        log(asdict(stage))
        run_stage(model, tokenizer, stage, seed, device, log)
        log({"after": stage.name, **measure(model, tokenizer, device, 1000)})
    write_model(model, tokenizer, out)
    loaded = Qwen3ForCausalLM.from_pretrained(out, dtype=torch.float32)
    loaded.to(device)  # pyright: ignore[reportArgumentType]
    log({"after": "saved in bfloat16", **measure(loaded, tokenizer, device, 1000)})
    log.write(out / "training_log.jsonl")
    write_sums(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tinsmith/tiny"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu")
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads; 1 keeps the result exact"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    build(options.out, options.seed, device)


if __name__ == "__main__":
    main()
