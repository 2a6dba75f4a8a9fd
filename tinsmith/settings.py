"""Where tinsmith keeps its files and which environment variables it reads; nothing else reads them."""

from __future__ import annotations

import os
from pathlib import Path

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


def idle_seconds() -> float:
    """How long a service that was started on demand waits for work before it stops."""
    return float(os.environ.get("TINSMITH_IDLE_SECONDS") or 900)


def hosted_api_key() -> str | None:
    """The key for hosted Tinker."""
    return os.environ.get("TINKER_API_KEY") or None


def threads() -> int | None:
    """Torch threads of the service: `$TINSMITH_THREADS`, else chosen by the engine."""
    value = os.environ.get("TINSMITH_THREADS")
    return int(value) if value else None
