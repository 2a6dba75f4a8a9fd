"""A run of the embedded model with every monitor, as people type it: all tell the same story."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.unit.rl.monitors import wandb_files
from tinsmith.records.reader import RunReader
from tinsmith.records.run import RunStatus, read_run

pytestmark = pytest.mark.learning

WORDS = (
    "wandb.enabled=True",
    "wandb.mode=offline",
    "wandb.tags=arithmetic,tiny",
    "tensorboard=True",
    "batch_size=8",
    "eval_size=10",
    "save_every=1",
)


def train(environment: dict[str, str], directory: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tinsmith", "train", f"log_path={directory}", *words]
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout


def test_records_wandb_and_tensorboard_agree(environment, tmp_path):
    directory = tmp_path / "run"
    for length in (2, 3):  # the second goes on from the first
        code, output = train(environment, directory, *WORDS, f"num_batches={length}")
        assert code == 0, output
    assert read_run(directory).status is RunStatus.FINISHED
    recorded = list(RunReader(directory).metrics())
    assert [line["step"] for line in recorded] == [0, 1, 2, 3]
    rewards = {line["step"]: line["reward"] for line in recorded if "reward" in line}

    parts = wandb_files.offline_runs(directory)
    assert len(parts) == 2
    assert len({wandb_files.described(path).run_id for path in parts}) == 1
    assert list(wandb_files.described(parts[0]).tags) == ["arithmetic", "tiny"]
    sent = [line for path in parts for line in wandb_files.history(path)]
    assert {line["step"]: line["reward"] for line in sent if "reward" in line} == rewards
    assert {line["step"] for line in sent if "rollouts/eval" in line} == {0, 2, 3}
    assert any("rollouts/train" in line for line in sent)
    assert wandb_files.tables(parts[0])["train"][0][2]  # a prompt

    shown = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    shown.Reload()
    scalars = {point.step: point.value for point in shown.Scalars("reward")}
    assert scalars == pytest.approx(rewards)
    assert {point.step for point in shown.Tensors("rollouts/eval")} == {0, 2, 3}

    events = list(RunReader(directory).events())
    assert [event for event in events if event["kind"] == "warned"] == []
    assert sum(event["kind"] == "monitored" for event in events) == 4  # two, in two attempts
    assert "Traceback" not in "\n".join(RunReader(directory).log())


def test_online_without_a_login_is_refused_before_there_is_a_run(environment, tmp_path):
    code, output = train(environment, tmp_path / "run", "wandb.enabled=True")
    assert code == 2
    assert "wandb login" in output
    assert "wandb.mode=offline" in output
    assert "Traceback" not in output
    assert not (tmp_path / "run").exists()
