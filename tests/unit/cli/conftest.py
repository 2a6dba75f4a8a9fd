"""Gives every test of the command line a home of its own, and the run-directory writer."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TINSMITH_RUNS", raising=False)
    return tmp_path / "home"
