"""`tinsmith sft` as people type it: a process of its own, its records, its exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tinsmith.cli.main import main
from tinsmith.records.reader import RunReader
from tinsmith.records.run import read_run


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TINSMITH_RUNS", raising=False)


@pytest.fixture
def words(server, tmp_path):
    data = tmp_path / "data.jsonl"
    pairs = [{"prompt": f"q{at}", "completion": "ab"} for at in range(8)]
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return [
        f"data={data}",
        f"base_url={server.url}",
        f"log_path={tmp_path / 'anvil'}",
        "batch_size=3",
        "lora_rank=8",
    ]


def test_a_whole_run_from_the_first_word_to_the_last(words, tmp_path, capfd):
    assert main(["sft", *words, "tensorboard=true"]) == 0
    assert "step 3/3" in capfd.readouterr().out
    info = read_run(tmp_path / "anvil")
    assert (info.status, info.step, info.total_steps, info.exit_code) == ("finished", 3, 3, 0)
    assert info.command[:3] == ["tinsmith", "sft", words[0]]
    assert not any(word.startswith("log_path") for word in info.command)
    reader = RunReader(tmp_path / "anvil")
    assert [line["step"] for line in reader.metrics()] == [0, 1, 2, 3]
    assert any(line.startswith("step 1/3 nll ") for line in reader.log())
    assert list((tmp_path / "anvil").rglob("events.out.tfevents*"))

    assert main(["sft", *words, "tensorboard=true"]) == 0
    assert "is finished: 3 steps are done" in capfd.readouterr().out
    assert main(["sft", *words, "num_epochs=2"]) == 0
    assert [line["step"] for line in reader.metrics()] == list(range(7))
    assert read_run(tmp_path / "anvil").attempt == 2


def test_ctrl_c_saves_and_stops(words, tmp_path):
    directory = tmp_path / "anvil"
    command = [sys.executable, "-m", "tinsmith", "sft", "--attached-run", str(directory)]
    process = subprocess.Popen(
        [*command, *words, "num_batches=100000", "save_every=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
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
