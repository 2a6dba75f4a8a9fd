"""The writer's promises: each step once, whole lines, nothing undeclared, an atomic run.json."""

from __future__ import annotations

import errno
import json
import os

import pytest

from tinsmith.errors import RunError, StorageError
from tinsmith.records import files
from tinsmith.records.metrics import METRICS, is_time
from tinsmith.records.reader import RunReader, Tail
from tinsmith.records.rollout import RolloutRecord
from tinsmith.records.run import RunInfo, RunStatus, read_run
from tinsmith.records.writer import RunWriter


def info(**values) -> RunInfo:
    defaults = {
        "id": "calm-anvil",
        "name": "calm-anvil",
        "status": RunStatus.RUNNING,
        "command": [],
    }
    return RunInfo(**{**defaults, "config": {"seed": 0}, **values})


def rollout(step: int, member: int = 0, **values) -> RolloutRecord:
    defaults = {
        "problem_id": "arithmetic/1+2",
        "split": "train",
        "policy_version": step - 1,
        "reward": 1.0,
        "advantage": 0.5,
        "stop_reason": "done",
        "turns": [{"role": "assistant", "text": "3", "tokens": [7], "logprobs": [-0.5]}],
    }
    return RolloutRecord(step=step, member=member, **{**defaults, **values})


@pytest.fixture
def writer(tmp_path):
    return RunWriter(tmp_path / "calm-anvil", info(), clock=lambda: 100.0)


def reader_of(writer: RunWriter) -> RunReader:
    return RunReader(writer.layout.directory)


def test_what_is_written_is_read_back(writer):
    writer.metrics(1, {"reward": 0.25, "time/step": 1.5})
    writer.rollouts([rollout(1, 0), rollout(1, 1, reward=None, error="boom")])
    writer.checkpoint(1, "tinker://m/weights/000001", "tinker://m/sampler_weights/000001", {"n": 3})
    reader = reader_of(writer)
    assert list(reader.metrics()) == [
        {"step": 1, "reward": 0.25, "time/step": 1.5, "time/at": 100.0}
    ]
    assert list(reader.rollouts(1)) == [rollout(1, 0), rollout(1, 1, reward=None, error="boom")]
    assert reader.checkpoints()[0].problems == {"n": 3}
    assert [event["kind"] for event in reader.events()] == ["saved"]
    assert read_run(writer.layout.directory).step == 1


def test_resuming_drops_every_later_step(writer):
    for step in range(1, 6):
        writer.metrics(step, {"reward": step / 10})
        writer.rollouts([rollout(step)])
        if step in (2, 4):
            writer.checkpoint(step, f"state{step}", None, {})
    writer.start_at(2)
    reader = reader_of(writer)
    assert [line["step"] for line in reader.metrics()] == [1, 2]
    assert [c.step for c in reader.checkpoints()] == [2]
    assert reader.layout.rollout_steps() == [1, 2]
    assert [event["step"] for event in reader.events()] == [2]
    assert read_run(writer.layout.directory).step == 2


def test_starting_anew_drops_everything_even_step_0(writer):
    writer.metrics(0, {"eval/reward": 0.3})
    writer.rollouts([rollout(0)])
    writer.start_at(None)
    assert list(reader_of(writer).metrics()) == []
    assert reader_of(writer).layout.rollout_steps() == []


def test_resuming_drops_a_half_written_line(writer):
    writer.metrics(1, {"reward": 0.1})
    with writer.layout.metrics.open("ab") as file:
        file.write(b'{"step":2,"rew')
    writer.start_at(1)
    writer.metrics(2, {"reward": 0.2})
    assert [line["step"] for line in reader_of(writer).metrics()] == [1, 2]


def test_an_undeclared_metric_is_refused(writer):
    with pytest.raises(ValueError, match="rewrad"):
        writer.metrics(1, {"rewrad": 1.0})
    assert not writer.layout.metrics.exists()


def test_a_metric_that_is_no_number_is_left_out_and_noted(writer):
    writer.metrics(1, {"reward": 0.5, "kl": float("nan")})
    assert "kl" not in next(reader_of(writer).metrics())
    assert "kl" in next(reader_of(writer).events())["message"]


def test_finish_writes_the_last_word(writer):
    writer.progress(3, "sample", 5, 10)
    assert reader_of(writer).progress().done == 5
    writer.finish(RunStatus.FAILED, "the disk is full")
    found = read_run(writer.layout.directory)
    assert (found.status, found.message, found.finished_at) == ("failed", "the disk is full", 100.0)
    assert reader_of(writer).progress() is None


def test_progress_in_between_is_dropped_but_first_and_last_are_not(writer):
    for done in (0, 1, 2, 10):
        writer.progress(1, "sample", done, 10)
        shown = reader_of(writer).progress().done
        assert shown == (done if done in (0, 10) else 0)


def test_a_failed_append_leaves_no_half_line(writer, monkeypatch):
    writer.metrics(1, {"reward": 0.1})
    before = writer.layout.metrics.read_bytes()
    real = os.write

    def half_then_full(descriptor, data):
        monkeypatch.setattr(os, "write", full)
        return real(descriptor, bytes(data)[: len(data) // 2])

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(StorageError, match="No space left on device"):
        writer.metrics(2, {"reward": 0.2})
    monkeypatch.undo()
    assert writer.layout.metrics.read_bytes() == before


def test_run_json_of_a_later_version_is_still_read(writer):
    path = writer.layout.run
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "red"}))
    assert read_run(writer.layout.directory).name == "calm-anvil"


@pytest.mark.parametrize("contents", ["", "{", "[]", "{}", '{"status": "odd"}'])
def test_a_damaged_run_json_is_a_sentence(writer, contents):
    writer.layout.run.write_text(contents)
    with pytest.raises(RunError, match="damaged"):
        read_run(writer.layout.directory)


def test_no_run_is_a_sentence(tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        read_run(tmp_path)


def test_tail_returns_only_what_is_new_and_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.poll() == []
    path.write_bytes(b'{"step":1}\n{"st')
    assert tail.poll() == [{"step": 1}]
    with path.open("ab") as file:
        file.write(b'ep":2}\n')
    assert tail.poll() == [{"step": 2}]
    assert tail.generation == 0
    files.replace(path, b'{"step":1}\n')
    assert tail.poll() == [{"step": 1}]
    assert tail.generation == 1


def test_logs_latest_points_at_the_last_attempt(writer):
    for attempt in (1, 2):
        writer.layout.start_attempt(attempt).write_text(f"attempt {attempt}\n")
    assert writer.layout.latest_log.read_text() == "attempt 2\n"
    assert reader_of(writer).log() == ["attempt 2"]


def test_text_with_a_lone_surrogate_is_stored(writer):
    writer.rollouts([rollout(1, turns=[{"role": "assistant", "text": "\ud83d"}])])
    assert len(list(reader_of(writer).rollouts(1))) == 1


def test_every_metric_explains_itself():
    for name, metric in METRICS.items():
        assert metric.meaning.endswith("."), name
        assert (metric.low is None and metric.high is None) or metric.advice, name
    assert is_time("time/step")
    assert METRICS["cut_off"].concern(0.2)
    assert METRICS["cut_off"].concern(0.05) is None
