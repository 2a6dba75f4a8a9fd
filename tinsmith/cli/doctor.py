"""`tinsmith doctor`: says in sentences what this machine has and lacks, and what to type."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import tinsmith
from tinsmith import settings
from tinsmith.cli.main import FIRST_COMMAND
from tinsmith.errors import ConfigError

USAGE = """tinsmith doctor [--json]: says what this machine has and lacks, and what to type.

Exit code 0 when the first training command can work here, 1 when something it needs is missing."""

LOCAL_PACKAGES = (
    "fastapi",
    "uvicorn",
    "google.protobuf",
    "safetensors",
    "sqlite_utils",
    "tokenizers",
    "zstandard",
)
INSTALL_LOCAL = 'pip install "tinsmith[local]"'
GIBIBYTE = 1 << 30
DISK_NEEDED = 1 * GIBIBYTE
MEMORY_NEEDED = 2 * GIBIBYTE


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # the first command works without it
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    """One sentence about this machine; `fix` is what to type when something is lacking."""

    level: Level
    sentence: str
    fix: str = ""


def run(argv: list[str]) -> int:
    """Print the findings; exit code 1 when the first command could not work."""
    if argv in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if argv not in ([], ["--json"]):
        raise ConfigError(f"`tinsmith doctor` takes only --json (got {' '.join(argv)!r}).")
    findings = [check() for check in CHECKS]
    works = all(finding.level is not Level.MISSING for finding in findings)
    if argv:
        print(json.dumps({"works": works, "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        _print(findings, works)
    return 0 if works else 1


def _print(findings: list[Finding], works: bool) -> None:
    marks = {Level.OK: "✓", Level.NOTE: "·", Level.MISSING: "✗"}
    for finding in findings:
        fix = f" Type: {finding.fix}" if finding.fix else ""
        print(f"{marks[finding.level]} {finding.sentence}{fix}")
    if works:
        print(f"\nThe first command works here. Type: {FIRST_COMMAND}")
    else:
        print("\nThe first command cannot work here yet: see the lines marked ✗.")


# ── the checks ───────────────────────────────────────────────────────────────────────────────


def python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(
        Level.OK, f"tinsmith {tinsmith.__version__} on Python {version} ({sys.executable})."
    )


def torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding(
            Level.MISSING, "PyTorch is not installed; the local service needs it.", INSTALL_LOCAL
        )
    try:
        import torch
    except (ImportError, OSError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        return Finding(
            Level.MISSING,
            f"PyTorch is installed but cannot be imported ({first_line}).",
            INSTALL_LOCAL,
        )
    if not torch.cuda.is_available():
        return Finding(
            Level.OK,
            f"PyTorch {torch.__version__}, without a CUDA device: training runs on the CPU.",
        )
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    memory = torch.cuda.get_device_properties(0).total_memory / GIBIBYTE
    return Finding(
        Level.OK, f"PyTorch {torch.__version__} with CUDA: {', '.join(names)} ({memory:.0f} GiB)."
    )


def service_packages() -> Finding:
    absent = [name for name in LOCAL_PACKAGES if not _installed(name)]
    if absent:
        return Finding(
            Level.MISSING, f"The local service also needs {', '.join(absent)}.", INSTALL_LOCAL
        )
    return Finding(Level.OK, "The local service's packages are installed.")


def machine() -> Finding:
    import psutil

    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    memory = psutil.virtual_memory()
    sentence = (
        f"{cores} CPU core{'s' if cores > 1 else ''} and {memory.total / GIBIBYTE:.1f} GiB of memory, "
        f"{memory.available / GIBIBYTE:.1f} GiB of it free"
    )
    if memory.available < MEMORY_NEEDED:
        return Finding(
            Level.NOTE,
            f"{sentence}: training the embedded model wants about {MEMORY_NEEDED // GIBIBYTE} GiB; "
            "close something first.",
        )
    return Finding(Level.OK, f"{sentence}.")


def home() -> Finding:
    directory = settings.home()
    existing = next(path for path in (directory, *directory.resolve().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding(
            Level.MISSING,
            f"{directory}, where runs and checkpoints go, cannot be written.",
            "export TINSMITH_HOME=<a directory you may write to>",
        )
    free = shutil.disk_usage(existing).free
    if free < DISK_NEEDED:
        return Finding(
            Level.MISSING,
            f"Only {free / GIBIBYTE:.2f} GiB are free at {directory}; a run wants about "
            f"{DISK_NEEDED // GIBIBYTE} GiB.",
            "export TINSMITH_HOME=<a directory on a disk with space>",
        )
    return Finding(
        Level.OK, f"{directory} can be written; {free / GIBIBYTE:.0f} GiB are free there."
    )


def embedded_model() -> Finding:
    directory = Path(tinsmith.__file__).parent / "tiny"
    try:
        kind = json.loads((directory / "config.json").read_bytes())["model_type"]
        json.loads((directory / "tokenizer.json").read_bytes())
        weights = directory / "model.safetensors"
        size = weights.stat().st_size
        with weights.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
            if header > size:
                raise ValueError(f"{weights.name} is damaged")
            tensors = json.loads(file.read(header))
    except (OSError, ValueError, KeyError, TypeError) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = f"{Path(error.filename).name} is missing" if missing else str(error)
        return Finding(
            Level.MISSING,
            f"The embedded model in {directory} cannot be read ({reason}).",
            f"pip install --force-reinstall --no-deps tinsmith=={tinsmith.__version__}",
        )
    return Finding(
        Level.OK,
        f"The embedded model {settings.EMBEDDED_MODEL} is here ({kind}, {len(tensors)} tensors, {size / (1 << 20):.1f} MiB).",
    )


def local_service() -> Finding:
    from tinsmith.connect import local_service

    address = local_service()
    if address is None:
        return Finding(
            Level.NOTE, "No local service is running; `tinsmith train` starts one when needed."
        )
    sentence = f"A local service is running at {address.url} (pid {address.pid})"
    if address.version != tinsmith.__version__:
        return Finding(
            Level.NOTE,
            f"{sentence}, but it is version {address.version}; end it so that the next run starts a new one.",
            f"kill {address.pid}",
        )
    return Finding(Level.OK, f"{sentence}.")


def hosted_key() -> Finding:
    if settings.hosted_api_key():
        return Finding(Level.OK, "TINKER_API_KEY is set: runs can also use hosted Tinker.")
    return Finding(
        Level.NOTE,
        "TINKER_API_KEY is not set; only hosted Tinker needs it.",
        "export TINKER_API_KEY=tml-...",
    )


def wandb() -> Finding:
    if _installed("wandb"):
        return Finding(Level.OK, "wandb is installed: `wandb.enabled=True` sends metrics there.")
    return Finding(
        Level.NOTE,
        "wandb is not installed; only `wandb.enabled=True` needs it.",
        'pip install "tinsmith[wandb]"',
    )


CHECKS: tuple[Callable[[], Finding], ...] = (
    python,
    torch,
    service_packages,
    embedded_model,
    machine,
    home,
    local_service,
    hosted_key,
    wandb,
)


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package of a dotted name is absent
        return False
