"""RunManager: runs here and elsewhere, the truth about their processes, their records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.cli import synthetic
from tinsmith.errors import RunError, StorageError
from tinsmith.records.run import RunStatus
from tinsmith.runs.follow import RunFollower
from tinsmith.runs.manager import RunManager, load


@pytest.fixture
def manager(tmp_path: Path) -> RunManager:
    return RunManager(tmp_path / "runs", tmp_path / "home" / "runs.index")


def test_runs_elsewhere_are_found_once_registered(tmp_path: Path, manager: RunManager) -> None:
    inside, outside = tmp_path / "runs" / "calm-anvil", tmp_path / "else where" / "bold-file"
    synthetic.finished(inside)
    synthetic.finished(outside)
    assert [run.directory for run in manager.list()] == [inside]
    for _ in range(2):
        manager.register(outside)
        manager.register(inside)
    assert {run.directory for run in manager.list()} == {inside, outside}
    assert manager.get("bold-file").directory == outside
    assert len((tmp_path / "home" / "runs.index").read_text().splitlines()) == 1


def test_a_registered_run_that_was_deleted_is_forgotten(
    tmp_path: Path, manager: RunManager
) -> None:
    manager.register(tmp_path / "gone")
    assert manager.list() == []
    with pytest.raises(RunError, match="no run 'gone'"):
        manager.get("gone")


def test_two_runs_of_one_name_must_be_told_apart(tmp_path: Path, manager: RunManager) -> None:
    synthetic.finished(tmp_path / "runs" / "calm-anvil")
    synthetic.finished(tmp_path / "other" / "calm-anvil")
    manager.register(tmp_path / "other" / "calm-anvil")
    with pytest.raises(RunError, match="2 runs named calm-anvil"):
        manager.get("calm-anvil")
    assert manager.get(str(tmp_path / "other" / "calm-anvil")).directory.parent.name == "other"


def test_an_index_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"runs\.index"):
        RunManager(tmp_path / "runs", tmp_path / "file" / "runs.index").register(tmp_path / "x")


def test_the_truth_about_a_process(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run")
    assert load(tmp_path / "run").info.status is RunStatus.RUNNING
    writer.update(pid_started_at=1.0)  # the pid now belongs to a stranger
    assert load(tmp_path / "run").info.status is RunStatus.LOST
    writer.update(status=RunStatus.STARTING, pid=None)
    assert load(tmp_path / "run").info.status is RunStatus.STARTING
    writer.update(status=RunStatus.FINISHED, pid=os.getpid())
    assert load(tmp_path / "run").info.status is RunStatus.FINISHED


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path, manager: RunManager) -> None:
    synthetic.finished(tmp_path / "runs" / "good")
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "run.json").write_text('{"id": ')
    assert [run.name for run in manager.list()] == ["good"]
    with pytest.raises(RunError, match="damaged"):
        manager.get("bad")


def test_lists_can_be_narrowed(tmp_path: Path, manager: RunManager) -> None:
    synthetic.finished(tmp_path / "runs" / "a")
    synthetic.running(tmp_path / "runs" / "b")
    assert [run.name for run in manager.list(status=RunStatus.RUNNING)] == ["b"]
    assert len(manager.list(limit=1)) == 1


def test_records_by_name(tmp_path: Path, manager: RunManager) -> None:
    synthetic.finished(tmp_path / "runs" / "a")
    assert list(manager.metrics("a", keys=["reward"], since=3)) == [
        {"step": 3, "reward": pytest.approx(0.6)},
        {"step": 4, "reward": pytest.approx(0.8)},
    ]
    assert [event["kind"] for event in manager.events("a")] == ["started", "saved", "finished"]
    assert [r.member for r in manager.rollouts("a", 1, problem_id="p1")] == [0, 1, 2, 3]
    assert manager.log("a") == []


def test_only_an_unfinished_run_can_be_stopped(tmp_path: Path, manager: RunManager) -> None:
    synthetic.finished(tmp_path / "runs" / "a")
    with pytest.raises(RunError, match="it is finished"):
        manager.stop("a")


def test_the_follower_forgets_what_a_resumed_run_took_back(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run", steps=3)
    follower = RunFollower(tmp_path / "run")
    assert [line["step"] for line in follower.poll().metrics] == [0, 1, 2, 3]
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "rew')
    assert [line["step"] for line in follower.poll().metrics] == [0, 1, 2, 3]
    writer.start_at(1)
    assert [line["step"] for line in follower.poll().metrics] == [0, 1]
    writer.metrics(2, synthetic.metrics(2))
    assert [line["step"] for line in follower.poll().metrics] == [0, 1, 2]
