"""A run to monitor and rollouts to show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tinsmith.records.reader import RunReader
from tinsmith.records.rollout import RolloutRecord, Split
from tinsmith.records.run import RunInfo, RunStatus
from tinsmith.records.writer import RunWriter

Notes = Callable[[str], list[str]]


def open_run(directory: Path, **values) -> RunWriter:
    defaults = {"config": {"seed": 0, "optim.lr": 0.001}, "created_at": 5.0}
    info = RunInfo(
        **{
            "id": "calm-anvil",
            "name": "calm-anvil",
            "status": RunStatus.RUNNING,
            "command": [],
            **defaults,
            **values,
        }
    )
    return RunWriter(directory, info)


def rollout(step: int = 1, split: Split = "train", member: int = 0, **values) -> RolloutRecord:
    defaults = {
        "problem_id": f"sum-{member}",
        "policy_version": step,
        "reward": 1.0,
        "advantage": 0.25,
        "stop_reason": "stop",
        "turns": [
            {"role": "prompt", "text": "What is 1 + 1?"},
            {"role": "assistant", "text": "2", "logs": {"answer": "2", "expected": "2"}},
        ],
    }
    return RolloutRecord(step=step, split=split, member=member, **{**defaults, **values})


@pytest.fixture
def run(tmp_path) -> RunWriter:
    return open_run(tmp_path / "run")


@pytest.fixture
def notes(run) -> Notes:
    """The messages of the events of one kind."""
    reader = RunReader(run.layout.directory)
    return lambda kind: [event["message"] for event in reader.events() if event["kind"] == kind]
