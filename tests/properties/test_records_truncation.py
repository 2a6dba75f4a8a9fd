"""A run killed in the middle of any write can be read, resumed, and then has each step once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith.records.reader import RunReader, Tail
from tinsmith.records.rollout import RolloutRecord
from tinsmith.records.run import RunInfo, RunStatus
from tinsmith.records.writer import RunWriter

text = st.text(max_size=20)
INFO = RunInfo(id="r", name="r", status=RunStatus.RUNNING, command=[], config={})


def record(step: int, said: str) -> RolloutRecord:
    turns = [{"role": "assistant", "text": said, "tokens": [1], "logprobs": [-0.1]}]
    return RolloutRecord(step, "p\n" + said, 0, "train", step, 1.0, None, "done", turns)  # type: ignore[arg-type]


@settings(max_examples=10, deadline=None)
@given(said=st.lists(text, min_size=1, max_size=3))
def test_cut_at_every_byte(said):
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(Path(folder), INFO, clock=lambda: 1.0)
        records = [record(1, words) for words in said]
        writer.rollouts(records)
        whole = writer.layout.rollouts(1).read_bytes()
        reader = RunReader(Path(folder))
        for cut in range(len(whole) + 1):
            writer.layout.rollouts(1).write_bytes(whole[:cut])
            found = list(reader.rollouts(1))
            assert found == records[: whole[:cut].count(b"\n")]


@settings(max_examples=4, deadline=None)
@given(steps=st.integers(1, 3), kept=st.integers(0, 3))
def test_resume_after_a_cut_at_every_byte_of_the_metrics(steps, kept):
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(Path(folder), INFO, clock=lambda: 1.0)
        for step in range(1, steps + 1):
            writer.metrics(step, {"reward": step / 7})
        whole = writer.layout.metrics.read_bytes()
        lines = list(RunReader(Path(folder)).metrics())
        for cut in range(len(whole) + 1):
            writer.layout.metrics.write_bytes(whole[:cut])
            survived = whole[:cut].count(b"\n")
            writer.start_at(min(kept, survived))
            for step in range(min(kept, survived) + 1, steps + 1):
                writer.metrics(step, {"reward": step / 7})
            assert list(RunReader(Path(folder)).metrics()) == lines


@settings(max_examples=30, deadline=None)
@given(
    said=st.lists(text, min_size=1, max_size=4),
    pieces=st.lists(st.integers(1, 40), min_size=1, max_size=50),
)
def test_a_tail_sees_every_line_once_however_the_bytes_arrive(said, pieces):
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(Path(folder), INFO, clock=lambda: 1.0)
        for words in said:
            writer.event("warned", message=words)
        whole = writer.layout.events.read_bytes()
        path = Path(folder) / "arriving.jsonl"
        tail, seen, rest = Tail(path), [], whole
        for piece in [*pieces, len(whole)]:
            with path.open("ab") as file:
                file.write(rest[:piece])
            rest = rest[piece:]
            seen += tail.poll()
        assert [event["message"] for event in seen] == said
        assert tail.generation == 0
