"""Reads the records of a run, also while they are being written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinsmith.records import files
from tinsmith.records.files import Json
from tinsmith.records.layout import RunLayout
from tinsmith.records.rollout import RolloutRecord, Split


class Tail:
    """Follows a file of records: each `poll` returns the whole lines that came since the last one.

    When the file was replaced or cut (a run was resumed) reading begins again at its start and
    `generation` grows, so that a view can forget what it has shown.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: int | None = None
        self.generation = 0

    def poll(self) -> list[Json]:
        try:
            with self._path.open("rb") as file:
                return self._read(file.fileno())
        except FileNotFoundError:
            self._restart(None)
            return []

    def _read(self, descriptor: int) -> list[Json]:
        status = os.fstat(descriptor)
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._restart(status.st_ino)
        data = os.pread(descriptor, status.st_size - self._offset, self._offset)
        end = data.rfind(b"\n") + 1  # what follows is still being written
        self._offset += end
        records = map(files.from_line, data[:end].splitlines())
        return [record for record in records if record is not None]

    def _restart(self, inode: int | None) -> None:
        if self._offset > 0:
            self.generation += 1
        self._offset = 0
        self._inode = inode


@dataclass(frozen=True)
class Progress:
    """Where the present step stands: `done` of `total` in `phase`."""

    step: int
    phase: str
    done: int
    total: int
    at: float


@dataclass(frozen=True)
class CheckpointRecord:
    step: int
    state_path: str
    sampler_path: str | None
    problems: Json  # the problem source's state
    at: float
    loop: Json = field(default_factory=dict[str, Any])  # where the sampling stood
    score: float | None = None  # held-out result of these weights; None: not evaluated


class RunReader:
    """Pages through the records of one run."""

    def __init__(self, directory: Path) -> None:
        self.layout = RunLayout(directory)

    def metrics(self, *, since: int = 0) -> Iterator[Json]:
        """The lines of steps from `since` on."""
        return (
            line for line in files.whole_lines(self.layout.metrics) if line.get("step", 0) >= since
        )

    def events(self) -> Iterator[Json]:
        return files.whole_lines(self.layout.events)

    def checkpoints(self) -> list[CheckpointRecord]:
        """Every checkpoint that is still kept, in the order they were saved."""
        kept: dict[int, CheckpointRecord] = {}
        for line in files.whole_lines(self.layout.checkpoints):
            step = int(line["step"])
            kept.pop(step, None)
            if line.get("deleted"):
                continue
            kept[step] = CheckpointRecord(
                step=step,
                state_path=line["state_path"],
                sampler_path=line.get("sampler_path"),
                problems=line.get("problems") or {},
                at=float(line.get("at", 0.0)),
                loop=line.get("loop") or {},
                score=line.get("score"),
            )
        return list(kept.values())

    def best_checkpoint(self) -> CheckpointRecord | None:
        """The one with the best held-out result, the latest of equals; None when none was evaluated."""
        scored = [c for c in self.checkpoints() if c.score is not None]
        return max(scored, key=lambda c: (c.score, c.step), default=None)

    def rollouts(
        self, step: int, *, split: Split | None = None, problem_id: str | None = None
    ) -> Iterator[RolloutRecord]:
        """The rollouts of one step, optionally of one split or one problem."""
        for line in files.whole_lines(self.layout.rollouts(step)):
            record = RolloutRecord.from_json(line)
            if split not in (None, record.split) or problem_id not in (None, record.problem_id):
                continue
            yield record

    def progress(self) -> Progress | None:
        """What the run is doing right now; None when it does not say."""
        line = next(files.whole_lines(self.layout.progress), None)
        if line is None:
            return None
        return Progress(
            step=int(line["step"]),
            phase=str(line["phase"]),
            done=int(line["done"]),
            total=int(line["total"]),
            at=float(line["at"]),
        )

    def log(self, *, tail: int = 200) -> list[str]:
        """The last lines the latest attempt printed."""
        try:
            data = self.layout.latest_log.read_bytes()
        except FileNotFoundError:
            return []
        return data.decode("utf-8", errors="replace").splitlines()[-tail:]
