"""Runs as processes of their own, and what they recorded beside the times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tinsmith.records.metrics import is_time
from tinsmith.records.reader import RunReader


def start(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tinsmith", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output


def timeless(directory: Path) -> list[dict[str, float]]:
    lines = RunReader(directory).metrics()
    return [{k: v for k, v in line.items() if not is_time(k)} for line in lines]
