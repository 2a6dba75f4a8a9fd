"""`tinsmith train` as people type it: a process of its own, its records, its exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tinsmith.cli.main import main
from tinsmith.records.reader import RunReader
from tinsmith.records.run import RunInfo, RunStatus, read_run, write_run
from tinsmith.rl.config import EMBEDDED_LR


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TINSMITH_RUNS", raising=False)


@pytest.fixture
def words(server, tmp_path):
    return [
        f"base_url={server.url}",
        f"log_path={tmp_path / 'anvil'}",
        "batch_size=2",
        "group_size=2",
        "eval_size=2",
        "env.max_tokens=2",
        "lora_rank=8",
    ]


def child(directory: Path, words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tinsmith", "train", "--attached-run", str(directory), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def earlier(directory: Path, **values) -> None:
    """What an earlier attempt left behind."""
    from tinsmith.cli.config import flat, parse

    config = flat(parse(values.pop("words")))
    defaults = {"id": "anvil", "name": "anvil", "status": RunStatus.FINISHED, "command": []}
    directory.mkdir()
    write_run(directory, RunInfo(**{**defaults, "config": config, **values}))


def test_a_whole_run_from_the_first_word_to_the_last(words, tmp_path, capfd):
    assert main(["train", *words, "num_batches=2"]) == 0
    shown = capfd.readouterr().out
    assert "step 2/2" in shown
    info = read_run(tmp_path / "anvil")
    assert (info.status, info.step, info.exit_code) == ("finished", 2, 0)
    assert "num_batches=2" in info.changed
    assert info.command[:2] == ["tinsmith", "train"]
    assert not any(word.startswith("log_path") for word in info.command)
    assert info.config["optim.lr"] == EMBEDDED_LR
    assert info.versions["tinker"]
    reader = RunReader(tmp_path / "anvil")
    assert [line["step"] for line in reader.metrics()] == [0, 1, 2]
    assert any("step 1/2" in line for line in reader.log())
    assert reader.progress() is None

    assert main(["train", *words, "num_batches=2"]) == 0
    assert "is finished: 2 steps are done" in capfd.readouterr().out
    assert main(["train", *words, "num_batches=3"]) == 0
    assert [line["step"] for line in reader.metrics()] == [0, 1, 2, 3]
    assert read_run(tmp_path / "anvil").attempt == 2


def test_ctrl_c_saves_and_stops(words, tmp_path):
    directory = tmp_path / "anvil"
    process = child(directory, [*words, "num_batches=100000", "save_every=0"])
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 2/"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stdout.read()
    assert process.wait(60) == 130, rest
    info = read_run(directory)
    assert (info.status, info.exit_code) == ("stopped", 130)
    assert RunReader(directory).checkpoints()[-1].step == info.step >= 2


def test_a_model_that_is_not_there_fails_with_the_services_sentence(words, tmp_path, capfd):
    assert main(["train", *words, "model_name=nobody/nothing"]) == 2
    info = read_run(tmp_path / "anvil")
    assert info.status is RunStatus.FAILED
    assert "nobody/nothing" in info.message
    assert "Traceback" not in "\n".join(RunReader(tmp_path / "anvil").log())


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("model_name=/nowhere/at/all", "is no directory"),
        ("model_name=tinsmith/tinny", "Did you mean tinsmith/tiny?"),
        ("base_url=hosted", "TINKER_API_KEY is not set"),
        ("base_url=ftp://x", "must be `local`, `hosted` or a URL"),
        ("wandb.enabled=True", "pip install"),
    ],
)
def test_what_cannot_work_is_refused_before_there_is_a_run(
    word, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.setattr("tinsmith.rl.monitors.importlib.util.find_spec", lambda name: None)
    assert main(["train", f"log_path={tmp_path / 'anvil'}", word]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "anvil").exists()


def test_a_directory_of_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    (tmp_path / "file").touch()
    assert main(["train", f"log_path={tmp_path / 'photos'}"]) == 2
    assert "is not empty and holds no run (it has cat.jpg)" in capsys.readouterr().err
    assert main(["train", f"log_path={tmp_path / 'file'}"]) == 2
    assert "is a file" in capsys.readouterr().err


def test_a_running_run_is_not_started_twice(tmp_path, capsys):
    import psutil

    me = psutil.Process()
    values = {"status": RunStatus.RUNNING, "pid": me.pid, "pid_started_at": me.create_time()}
    earlier(tmp_path / "anvil", words=[], **values)
    assert main(["train", f"log_path={tmp_path / 'anvil'}"]) == 2
    assert "still running" in (said := capsys.readouterr().err)
    assert "tinsmith runs watch anvil" in said


def test_other_settings_are_refused_by_name(tmp_path, capsys):
    earlier(tmp_path / "anvil", words=["batch_size=8", "num_batches=3", "save_every=1"])
    words = [f"log_path={tmp_path / 'anvil'}", "batch_size=9", "num_batches=5", "optim.lr=1e-4"]
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert f"batch_size was 8, now 9; optim.lr was {EMBEDDED_LR}, now 0.0001" in said
    assert "num_batches" not in said


def test_two_processes_never_write_one_run(words, tmp_path):
    from filelock import FileLock

    directory = tmp_path / "anvil"
    directory.mkdir()
    with FileLock(directory / "run.lock"):
        process = child(directory, words)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "another process is training in" in output
    assert not (directory / "run.json").exists()


def test_records_that_cannot_be_written_are_a_sentence(words, tmp_path):
    directory = tmp_path / "anvil"
    directory.mkdir()
    (directory / "rollouts").write_bytes(b"a file where the folder should be")
    process = child(directory, [*words, "num_batches=1"])
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cannot write" in output
    assert "Traceback" not in output
    info = json.loads((directory / "run.json").read_text())
    assert info["status"] == "failed"
    assert "cannot write" in info["message"]
