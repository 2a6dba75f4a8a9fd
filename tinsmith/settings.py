"""Where tinsmith keeps its files and which environment variables it reads; nothing else reads them."""

from __future__ import annotations

import os
from pathlib import Path

from tinsmith.errors import ConfigError

EMBEDDED_MODEL = "tinsmith/tiny"
HOSTED_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
LOCAL_API_KEY = "tml-local"  # the SDK insists on a key of this form; a loopback service accepts any
DEFAULT_PORT = 7411


def home() -> Path:
    """The state directory: `$TINSMITH_HOME`, else `~/.tinsmith`."""
    return Path(os.environ.get("TINSMITH_HOME") or Path.home() / ".tinsmith")


def service_directory() -> Path:
    """Database, checkpoints and log of the local service."""
    return home() / "service"


def service_file() -> Path:
    """Where a running local service says how to reach it."""
    return home() / "service.json"


def runs_directory() -> Path:
    """Where runs go when no `log_path` is given: `$TINSMITH_RUNS`, else `<home>/runs`."""
    return Path(os.environ.get("TINSMITH_RUNS") or home() / "runs")


def datasets_directory() -> Path:
    """Files of named datasets, found before the hub is asked: `<name>/train.jsonl` and so on."""
    return home() / "datasets"


def _number(name: str, default: float | None) -> float | None:
    value = os.environ.get(name)
    if not value:
        return default
    try:
        return float(value)
    except ValueError:
        raise ConfigError(
            f"${name} must be a number (got {value!r}); change or unset it."
        ) from None


def idle_seconds() -> float:
    """How long a service that was started on demand waits for work before it stops."""
    return _number("TINSMITH_IDLE_SECONDS", 900.0) or 0.0


def hosted_api_key() -> str | None:
    """The key for hosted Tinker."""
    return os.environ.get("TINKER_API_KEY") or None


def openai_api_key() -> str | None:
    """The key for an OpenAI-compatible endpoint."""
    return os.environ.get("OPENAI_API_KEY") or None


def threads() -> int | None:
    """Torch threads of the service: `$TINSMITH_THREADS`, else chosen by the engine."""
    value = _number("TINSMITH_THREADS", None)
    return None if value is None else int(value)
