"""`tinsmith serve` from start to end, and what it says when it cannot start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from filelock import FileLock

from tinsmith.cli import serve
from tinsmith.errors import ConfigError


def test_a_port_in_use_is_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use"):
            serve.run(["--port", str(port), "--directory", str(tmp_path)])


def test_a_directory_in_use_is_a_sentence(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / "service.lock"),
        pytest.raises(ConfigError, match="another service uses"),
    ):
        serve.run(["--port", "0", "--directory", str(tmp_path)])


def test_an_unusable_directory_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        serve.run(["--port", "0", "--directory", str(tmp_path / "file" / "below")])


@pytest.mark.parametrize(
    ("argv", "words"),
    [(["--prt", "1"], "--port"), (["--port", "70000"], "65535"), (["--threads", "x"], "threads")],
)
def test_wrong_options_are_a_sentence(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        serve.run(argv)


def start(home: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    """A service of its own and the line it says when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tinsmith", "serve", "--port", "0", "--device", "cpu", *options],
        env=os.environ | {"TINSMITH_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline()


def test_announces_itself_and_ends_on_a_signal(tmp_path: Path) -> None:
    process, line = start(tmp_path, "--announce", "--threads", "1")
    assert "serves the Tinker API at http://127.0.0.1:" in line
    facts = json.loads((tmp_path / "service.json").read_text())
    assert facts["pid"] == process.pid
    with urllib.request.urlopen(f"{facts['url']}/api/v1/healthz") as answer:
        assert json.load(answer)["token"] == facts["token"]
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, "")
    assert not (tmp_path / "service.json").exists()
    assert (tmp_path / "service" / "service.sqlite").exists()


def test_ends_by_itself_when_unused(tmp_path: Path) -> None:
    process, line = start(tmp_path, "--idle-seconds", "0.2")
    assert "serves" in line
    rest, _ = process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, "")
