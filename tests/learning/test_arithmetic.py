"""The first command works: reward on held-out sums rises, and a killed run ends as if it never was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.learning.processes import finish, start, timeless
from tinsmith.records.reader import RunReader
from tinsmith.records.run import read_run

pytestmark = pytest.mark.learning


def train(environment: dict[str, str], directory: Path, *words: str) -> subprocess.Popen[str]:
    return start(environment, "train", f"log_path={directory}", *words)


def test_reward_on_held_out_sums_rises(environment, tmp_path):
    finish(train(environment, tmp_path / "run", "seed=1", "num_batches=25"))
    lines = list(RunReader(tmp_path / "run").metrics())
    assert lines[0]["eval/reward"] <= 0.45
    assert lines[-1]["eval/reward"] >= 0.90
    assert all(line["kl"] < 1e-5 for line in lines[1:])


@pytest.mark.parametrize("mode", ["mode=sync", "mode=stream"])
def test_a_run_killed_in_the_middle_of_a_step_equals_one_that_was_not(environment, tmp_path, mode):
    words = ("num_batches=9", "save_every=3", "batch_size=24", "eval_size=50")
    words += ("num_minibatches=4", mode)
    finish(train(environment, tmp_path / "whole", *words))
    kill_and_resume(environment, tmp_path / "killed", words)
    assert timeless(tmp_path / "killed") == timeless(tmp_path / "whole")


def test_an_async_run_that_is_killed_skips_and_repeats_no_problem(environment, tmp_path):
    words = ("num_batches=9", "save_every=3", "batch_size=24", "eval_size=0", "mode=async")
    kill_and_resume(environment, tmp_path, words, first_line=1)
    reader = RunReader(tmp_path)
    trained = Counter(
        record.problem_id
        for step in range(1, 10)
        for record in reader.rollouts(step, split="train")
        if record.member == 0
    )
    assert len(trained) == 9 * 24
    assert set(trained.values()) == {1}
    assert all(line["staleness_max"] <= 2 for line in reader.metrics(since=1))


def kill_and_resume(
    environment: dict[str, str], directory: Path, words: Sequence[str], *, first_line: int = 0
) -> None:
    """Kill the run's process while it samples step 5; the same command then goes on from step 3."""
    process = train(environment, directory, *words)
    kill_while_sampling(directory, step=5)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert [line["step"] for line in RunReader(directory).metrics()] == list(range(first_line, 5))
    finish(train(environment, directory, *words))


def kill_while_sampling(directory: Path, *, step: int) -> None:
    reader = RunReader(directory)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        progress = reader.progress()
        if progress is not None and (progress.step, progress.phase) == (step, "sample"):
            pid = read_run(directory).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.002)
    raise AssertionError(json.dumps(reader.log()))
