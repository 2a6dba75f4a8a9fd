"""`tinsmith serve` from start to end, and what it says when it cannot start."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from filelock import FileLock

from tinsmith import connect
from tinsmith.cli import keys, serve
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


def test_a_wider_host_needs_a_key(tmp_path: Path) -> None:
    for options in (["--host", "0.0.0.0"], ["--require-keys"]):
        with pytest.raises(ConfigError, match=f"tinsmith keys create NAME --directory {tmp_path}"):
            serve.run(["--port", "0", "--directory", str(tmp_path), *options])


def test_a_host_elsewhere_is_a_sentence(tmp_path: Path) -> None:
    for host in ("192.0.2.1", "no such host"):
        with pytest.raises(ConfigError, match="not an address of this machine"):
            serve.run(["--port", "0", "--directory", str(tmp_path), "--host", host])


def test_help_explains_memory_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.run(["--help"]) == 0
    said = capsys.readouterr().out
    for word in ("Who may ask", "Memory", "Disk", "Limits", "Logs", "/metrics", "--max-body"):
        assert word in said
    assert max(map(len, said.splitlines())) <= 105


def test_a_service_for_others_asks_for_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path))
    assert keys.run(["create", "laptop"]) == 0
    key = capsys.readouterr().out.strip()
    options = ("--host", "0.0.0.0", "--threads", "1", "--log-format", "json", "--log-level", "info")
    process, line = start(tmp_path, *options)
    assert "requests need a key" in line
    facts = json.loads((tmp_path / "service.json").read_text())
    assert facts["keys"] is True
    assert stat.S_IMODE((tmp_path / "service.json").stat().st_mode) == 0o600
    with urllib.request.urlopen(f"{facts['url']}/api/v1/healthz") as answer:
        assert "token" not in json.load(answer)
    url = f"{facts['url']}/api/v1/get_server_capabilities"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url)
    request = urllib.request.Request(url, headers={"X-API-Key": key, "X-Request-Id": "mine"})
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["x-request-id"] == "mine"

    # A program of this machine finds it, and needs a key as well.
    with pytest.raises(ConfigError, match="tinsmith keys create"):
        connect._local_key(connect.find_or_start())
    monkeypatch.setenv("TINKER_API_KEY", key)
    assert connect._local_key(connect.find_or_start()) == key
    assert keys.run(["revoke", "1"]) == 0
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request)

    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    lines = [json.loads(line) for line in rest.splitlines()]
    mine = next(line for line in lines if line.get("request_id") == "mine")
    assert (mine["owner"], mine["status"], mine["level"]) == ("laptop", "200", "info")
    assert key not in rest
