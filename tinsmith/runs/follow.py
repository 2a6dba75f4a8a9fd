"""Follows a run directory: every poll gives the whole picture, reading only what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinsmith.errors import RunError
from tinsmith.records.files import Json
from tinsmith.records.reader import Progress, RunReader, Tail
from tinsmith.records.rollout import RolloutRecord
from tinsmith.records.run import RunInfo, RunStatus
from tinsmith.runs import process
from tinsmith.runs.manager import read_truth

HEADLINES = ("reward", "nll")  # what a run may be judged by: the first one that it measures


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment. `info` is None until its process has written run.json."""

    directory: Path
    status: RunStatus
    info: RunInfo | None = None
    metrics: list[Json] = field(default_factory=list[Json])
    events: list[Json] = field(default_factory=list[Json])
    progress: Progress | None = None

    @property
    def steps(self) -> list[Json]:
        """The lines of training steps; the evaluation before the first one is not a step."""
        return [line for line in self.metrics if is_step(line)]

    @property
    def evaluations(self) -> list[Json]:
        return [line for line in self.metrics if any(f"eval/{name}" in line for name in HEADLINES)]

    @property
    def headline(self) -> str:
        """What this run is judged by: the metric's name, which held-out lines have after `eval/`."""
        return headline(self.metrics)


def headline(lines: Sequence[Json]) -> str:
    """The metric that a run with these lines is judged by."""
    for name in HEADLINES:
        if any(name in line or f"eval/{name}" in line for line in lines):
            return name
    return HEADLINES[0]


def is_step(line: Json) -> bool:
    """Whether a line of metrics tells of a training step, be it beside an evaluation."""
    return any(name != "step" and not name.startswith(("eval/", "time/")) for name in line)


class RunFollower:
    """Reads one run again and again.

    `pid` is the process just started for the run: until that process has written run.json, what
    an earlier attempt left there is not believed.
    """

    def __init__(self, directory: Path, *, pid: int | None = None) -> None:
        self.directory = directory
        self.reader = RunReader(directory)
        self._pid = pid
        self._pid_started_at = process.started_at(pid) if pid is not None else None
        self._metrics = _Lines(Tail(self.reader.layout.metrics))
        self._events = _Lines(Tail(self.reader.layout.events))
        self._rollouts: tuple[int, list[RolloutRecord]] | None = None

    def poll(self) -> Snapshot:
        """The run as it is now."""
        # Status first: whatever a finished run wrote before its last word is then read too.
        info = self._info()
        if info is None:
            alive = self._starting()
            return Snapshot(self.directory, RunStatus.STARTING if alive else RunStatus.LOST)
        return Snapshot(
            self.directory,
            info.status,
            info,
            self._metrics.poll(),
            self._events.poll(),
            None if info.status.over else self.reader.progress(),
        )

    def rollouts(self, step: int) -> list[RolloutRecord]:
        """The rollouts of a finished step; the last one asked for is kept."""
        if self._rollouts is None or self._rollouts[0] != step:
            self._rollouts = step, list(self.reader.rollouts(step))
        return self._rollouts[1]

    def _info(self) -> RunInfo | None:
        try:
            info = read_truth(self.directory)
        except RunError:
            if self._pid is None:
                raise
            return None
        if self._pid is not None and info.pid != self._pid:
            return None
        return info

    def process(self) -> tuple[int, float] | None:
        """The run's process as pid and start time; None when none is known."""
        if self._pid is not None:
            started = self._pid_started_at
            return None if started is None else (self._pid, started)
        info = read_truth(self.directory)
        if info.pid is None or info.pid_started_at is None or info.status.over:
            return None
        return info.pid, info.pid_started_at

    def _starting(self) -> bool:
        known = self.process()
        return known is not None and process.is_alive(*known)


class _Lines:
    """All lines of a file so far; forgets them when the file began anew."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._lines: list[Json] = []
        self._generation = tail.generation

    def poll(self) -> list[Json]:
        new = self._tail.poll()
        if self._tail.generation != self._generation:
            self._generation = self._tail.generation
            self._lines = []
        if new:
            self._lines = [*self._lines, *new]
        return self._lines
