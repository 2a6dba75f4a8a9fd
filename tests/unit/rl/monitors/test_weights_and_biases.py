"""The real wandb, in processes of its own: offline it writes files, and what cannot work is a sentence."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.rl.monitors import wandb_files
from tests.unit.rl.monitors.conftest import open_run
from tinsmith.errors import ConfigError
from tinsmith.records.reader import RunReader
from tinsmith.rl.config import WandbConfig
from tinsmith.rl.monitors import check_monitors, login
from tinsmith.rl.monitors.weights_and_biases import run_id, without_keys

SCRIPT = Path(__file__).with_name("monitored.py")
KEY = "0123456789abcdef0123456789abcdef01234567"
OFFLINE = SimpleNamespace(wandb=WandbConfig(enabled=True, mode="offline"), tensorboard=False)
ONLINE = SimpleNamespace(wandb=WandbConfig(enabled=True), tensorboard=False)


@pytest.fixture
def environment(tmp_path, monkeypatch) -> dict[str, str]:
    """Nobody's wandb login, settings or variables; this process has the same."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "1")
    (tmp_path / "home").mkdir()
    return dict(os.environ)


def monitored(environment, *words: str, **more: str) -> tuple[int, str]:
    """The exit code of a monitored run and all it printed."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env={**environment, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


def warnings(directory: Path) -> list[str]:
    events = RunReader(directory).events()
    return [event["message"] for event in events if event["kind"] == "warned"]


def test_offline_everything_lies_in_the_run_directory(environment, tmp_path):
    directory = tmp_path / "run"
    code, output = monitored(environment, str(directory), "offline", "", "0", "1", "2", "1")
    assert (code, output) == (0, "")
    (path,) = wandb_files.offline_runs(directory)
    run = wandb_files.described(path)
    assert (run.entity, run.project, run.display_name) == ("smiths", "anvils", "ring")
    assert list(run.tags) == ["a", "b"]
    assert run.run_id == run_id(open_run(tmp_path / "other").info)
    config = wandb_files.config(path)
    assert (config["seed"], config["optim.lr"], config["wandb.tags"]) == (0, 0.001, ["a", "b"])

    lines = [line for line in wandb_files.history(path) if "reward" in line]
    # A resumed run does steps again; wandb's own step would refuse to go back.
    steps = (0, 1, 2, 1)
    assert lines == [{"step": s, "reward": s / 4, "eval/reward": 0.5} for s in steps]
    shown = [line for line in wandb_files.history(path) if "reward" not in line]
    assert {"step": 2, "rollouts/eval": "table"} in shown
    assert {"step": 1, "rollouts/train": "table"} in shown
    rows = wandb_files.tables(path)
    assert rows["eval"][0] == ["sum-0", 0, "", "", "", "", None, None, "broke"]
    assert rows["train"] == [["sum-0", 0, "What is 1 + 1?", "2", "2", "2", 1, 0.25, "stop"]]
    metrics = [record.metric for record in wandb_files.records(path) if record.HasField("metric")]
    assert [metric.step_metric for metric in metrics if metric.glob_name == "*"] == ["step"]
    assert warnings(directory) == []


@pytest.mark.parametrize("trouble", ["SIGSTOP", "SIGKILL"])
def test_a_helper_that_hangs_or_dies_stops_nothing(environment, tmp_path, trouble):
    directory = tmp_path / "run"
    code, output = monitored(
        environment, str(directory), "offline", trouble, *map(str, range(1, 9))
    )
    assert code == 0, output
    (warning,) = warnings(directory)
    assert warning.startswith("Weights & Biases is left out: ")
    (path,) = wandb_files.offline_runs(directory)
    assert [line["step"] for line in wandb_files.history(path) if "reward" in line][:1] in ([], [1])


def test_wandbs_own_variable_can_ask_for_less(environment, tmp_path):
    directory = tmp_path / "run"
    code, output = monitored(environment, str(directory), "online", "", "1", WANDB_MODE="offline")
    assert code == 0, output
    assert len(wandb_files.offline_runs(directory)) == 1


def test_without_a_login_there_is_no_run(environment):
    with pytest.raises(ConfigError, match=r"No API key configured.* wandb.mode=offline"):
        check_monitors(ONLINE)
    check_monitors(OFFLINE)


def test_a_dead_address_is_a_sentence(environment, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with pytest.raises(ConfigError, match="check the network") as refused:
        check_monitors(ONLINE)
    assert "http://127.0.0.1:9" in str(refused.value)
    assert KEY not in str(refused.value)


def test_a_server_that_never_answers_is_a_sentence(environment, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        with pytest.raises(ConfigError, match="cannot be used"):
            check_monitors(ONLINE)


def test_a_login_that_takes_too_long_is_given_up(environment, monkeypatch):
    monkeypatch.setattr(login, "LOGIN_SECONDS", 0.01)
    with pytest.raises(ConfigError, match="no answer within 0 s"):
        check_monitors(ONLINE)


class Refusing(BaseHTTPRequestHandler):
    """Knows every key, and lets nobody write into a project."""

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers.get("content-length", 0))).decode(errors="replace")
        viewer = {"id": "x", "entity": "me", "username": "me", "flags": "{}", "email": "me@x.y"}
        answer: dict = {"data": {"viewer": {**viewer, "teams": {"edges": []}}}}
        if "RunResumeStatus" in asked or "UpsertBucket" in asked:
            answer = {"errors": [{"message": f"permission denied to {KEY}"}], "data": None}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, format: str, *words: object) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_entity_that_is_not_ours_is_a_sentence(environment, tmp_path, refusing):
    more = {"WANDB_BASE_URL": refusing, "WANDB_API_KEY": KEY}
    code, output = monitored(environment, str(tmp_path / "run"), "online", "", "1", **more)
    assert code == 2
    (sentence,) = [line for line in output.splitlines() if line.startswith("tinsmith: ")]
    assert "permission denied to (key). Check wandb.entity" in sentence
    assert KEY not in output
    assert "Traceback" not in output


@pytest.mark.parametrize("config", [OFFLINE, ONLINE])
def test_a_missing_package_is_a_sentence(monkeypatch, config):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r'Type: pip install "tinsmith\[wandb\]"'):
        check_monitors(config)


def test_a_package_that_does_not_work_is_a_sentence(environment, tmp_path, monkeypatch):
    (tmp_path / "wandb.py").write_text("import nothing_of_that_name")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError, match="the package wandb does not work here"):
        check_monitors(ONLINE)


def test_runs_of_one_name_are_told_apart_and_attempts_are_not(tmp_path):
    info = open_run(tmp_path, id="my run #3: 50%/2", created_at=5.0).info
    assert run_id(info) == run_id(info.changed_to(attempt=2, started_at=9.0))
    assert run_id(info) != run_id(info.changed_to(created_at=6.0))
    assert not set(run_id(info)) & set("/\\#?%: ")
    assert len(run_id(info.changed_to(id="x" * 300))) <= 128


def test_keys_are_taken_out():
    said = without_keys(f"bad key {KEY}\nor wandb_v1_abc_DEF or local-{KEY.upper()}.")
    assert said == "bad key (key) or (key) or local-(key)."
