"""Supervised training helps, a start for reinforcement learning included, and survives a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.learning.processes import finish, start, timeless
from tinsmith.records.reader import RunReader
from tinsmith.records.run import read_run

pytestmark = pytest.mark.learning


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Right sums, some of them in conversations of two questions."""
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    with path.open("w") as file:
        for at in range(600):
            messages = [message for _ in range(1 + at % 2) for message in question(rng)]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def question(rng: random.Random) -> list[dict[str, str]]:
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    return [
        {"role": "user", "content": f"What is {a} + {b}?"},
        {"role": "assistant", "content": str(a + b)},
    ]


def test_it_lowers_the_held_out_nll_and_reinforcement_learning_starts_from_there(
    environment, sums, tmp_path
):
    finish(start(environment, "sft", f"data={sums}", f"log_path={tmp_path / 'warm'}"))
    lines = timeless(tmp_path / "warm")
    assert lines[0]["eval/nll"] > 0.25
    assert lines[-1]["eval/nll"] < 0.1
    path = RunReader(tmp_path / "warm").checkpoints()[-1].state_path
    words = (f"load_checkpoint_path={path}", "num_batches=1", "batch_size=8", "eval_size=200")
    finish(start(environment, "train", f"log_path={tmp_path / 'rl'}", *words))
    # The model as shipped gets less than 0.45 of the held-out sums right.
    assert timeless(tmp_path / "rl")[0]["eval/reward"] > 0.8


def test_a_killed_run_equals_one_that_was_not(environment, sums, tmp_path):
    words = ("sft", f"data={sums}", "num_epochs=3", "save_every=10", "eval_every=15")
    finish(start(environment, *words, f"log_path={tmp_path / 'whole'}"))
    process = start(environment, *words, f"log_path={tmp_path / 'killed'}")
    kill_after(tmp_path / "killed", step=14)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert len(timeless(tmp_path / "killed")) < len(timeless(tmp_path / "whole"))
    finish(start(environment, *words, f"log_path={tmp_path / 'killed'}"))
    assert timeless(tmp_path / "killed") == timeless(tmp_path / "whole")


def kill_after(directory: Path, *, step: int) -> None:
    """kill -9 as soon as the step is recorded, with the next one on its way."""
    reader = RunReader(directory)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(line["step"] >= step for line in reader.metrics()):
            pid = read_run(directory).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.002)
    raise AssertionError(json.dumps(reader.log()))
