"""An adapter added into its base model's weights, as a Hugging Face directory of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from tinsmith.errors import ConfigError, ModelError, one_of
from tinsmith.service.engine.sources import SMALL_FILES, Source, find_source, weight_files
from tinsmith.service.engine.weights import ADAPTER, CONFIG

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHARD_BYTES = 5 * 10**9
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_INDEX = "model.safetensors.index.json"
_PREFIX = "base_model.model."

Progress: TypeAlias = Callable[[int, int], None]  # bytes written, of how many


@dataclass(frozen=True)
class AdapterFiles:
    """A PEFT directory of LoRA factors, as this service or PEFT writes them."""

    base_model: str
    scale: float
    factors: dict[str, tuple[torch.Tensor, torch.Tensor]]  # weight's name -> A, B

    @classmethod
    def read(cls, directory: Path) -> AdapterFiles:
        try:
            config = json.loads((directory / CONFIG).read_text())
            tensors = load_file(directory / ADAPTER)
            base, rank, alpha = (
                config[key] for key in ("base_model_name_or_path", "r", "lora_alpha")
            )
            factors = {
                name.removeprefix(_PREFIX).replace(".lora_A.", "."): (
                    tensors[name],
                    tensors[name.replace(".lora_A.", ".lora_B.")],
                )
                for name in tensors
                if ".lora_A." in name
            }
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ModelError(
                f"{directory} is not an adapter that can be read ({error}); it should hold "
                f"{CONFIG} and {ADAPTER}."
            ) from error
        return cls(base, alpha / rank, factors)

    def added_to(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        if name not in self.factors:
            return weight
        a, b = self.factors[name]
        if (b.shape[0], a.shape[1]) != weight.shape:
            raise ModelError(
                f"the adapter's {name} is for a matrix of {b.shape[0]} x {a.shape[1]}, and that of "
                f"{self.base_model} is {' x '.join(map(str, weight.shape))}; is it the right base model?"
            )
        return weight.float() + self.scale * (b.float() @ a.float())


@dataclass(frozen=True)
class Piece:
    """One tensor of the merged model: what it is called, and where it comes from."""

    name: str
    file: Path
    taken_from: str
    dtype: torch.dtype
    bytes: int


def merge(adapter: Path, to: Path, dtype: str = "auto", progress: Progress | None = None) -> None:
    """Fill the directory `to`. Weights are added in float32; only one shard is in memory at a time."""
    if dtype not in ("auto", *DTYPES):
        raise ConfigError(one_of("dtype", dtype, ["auto", *DTYPES]))
    lora = AdapterFiles.read(adapter)
    source = find_source(lora.base_model)
    config: dict[str, Any] = json.loads((source.directory / "config.json").read_text())
    tied = bool(config.get("tie_word_embeddings", False))
    pieces = list(_pieces(source, lora, tied, DTYPES.get(dtype)))
    missing = lora.factors.keys() - {piece.name for piece in pieces}
    if missing:
        raise ModelError(
            f"the adapter trains {sorted(missing)[0]} and {len(missing) - 1} more that {lora.base_model} "
            "does not have; is it the right base model?"
        )
    to.mkdir(parents=True)
    _write(lora, pieces, to, progress or (lambda done, total: None))
    # A trained unembedding is no longer the embedding.
    config["tie_word_embeddings"] = tied and HEAD not in lora.factors
    config.pop("torch_dtype", None)
    config["dtype"] = str(pieces[0].dtype).removeprefix("torch.")
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for pattern in SMALL_FILES:
        for file in source.directory.glob(pattern):
            if file.name not in ("config.json", _INDEX):
                shutil.copyfile(file, to / file.name)


def _pieces(
    source: Source, lora: AdapterFiles, tied: bool, dtype: torch.dtype | None
) -> Iterator[Piece]:
    found: dict[str, Piece] = {}
    for file in weight_files(source):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is not a mapping
                whole = tensors.get_slice(name)
                kind = dtype or _dtype(whole.get_dtype(), name)
                size = torch.Size(whole.get_shape()).numel() * kind.itemsize
                found[name] = Piece(name, file, name, kind, size)
    if tied:  # a copy that some models carry along is not read
        found.pop(HEAD, None)
    if HEAD in lora.factors and HEAD not in found:
        if EMBEDDING not in found:
            raise ModelError(f"{source.name!r} has no tensor {EMBEDDING!r}; is it complete?")
        one = found[EMBEDDING]
        found[HEAD] = Piece(HEAD, one.file, EMBEDDING, one.dtype, one.bytes)
    yield from sorted(found.values(), key=lambda piece: (piece.file, piece.name))


def _dtype(name: str, tensor: str) -> torch.dtype:
    kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    if name not in kinds:
        raise ModelError(f"{tensor} is stored as {name}; give a --dtype to convert it to.")
    return kinds[name]


def _shards(pieces: list[Piece]) -> list[list[Piece]]:
    shards: list[list[Piece]] = [[]]
    for piece in pieces:
        if shards[-1] and sum(one.bytes for one in shards[-1]) + piece.bytes > SHARD_BYTES:
            shards.append([])
        shards[-1].append(piece)
    return shards


def _write(lora: AdapterFiles, pieces: list[Piece], to: Path, progress: Progress) -> None:
    shards, done = _shards(pieces), 0
    total = sum(piece.bytes for piece in pieces)
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        if len(shards) == 1:
            name = "model.safetensors"
        tensors: dict[str, torch.Tensor] = {}
        for piece in shard:
            tensors[piece.name] = _merged(lora, piece)
            places[piece.name] = name
            done += piece.bytes
            progress(done, total)
        save_file(tensors, to / name, metadata={"format": "pt"})
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (to / _INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _merged(lora: AdapterFiles, piece: Piece) -> torch.Tensor:
    try:
        with safe_open(piece.file, "pt") as tensors:
            weight = tensors.get_tensor(piece.taken_from)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read {piece.file}: {error}; download it again.") from error
    return lora.added_to(piece.name, weight).to(piece.dtype).contiguous()
