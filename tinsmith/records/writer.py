"""Writes the records of one run; only the process that trains has one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinsmith.records import files
from tinsmith.records.files import Json
from tinsmith.records.layout import RunLayout
from tinsmith.records.metrics import is_declared
from tinsmith.records.rollout import RolloutRecord
from tinsmith.records.run import RunInfo, RunStatus, write_run

PROGRESS_SECONDS = 0.1  # the live view looks four times a second


class RunWriter:
    """Appends to the records and keeps run.json up to date.

    `start_at(step)` forgets whatever lies beyond that step, so a step appears once however often
    the run was interrupted.
    """

    def __init__(
        self, directory: Path, info: RunInfo, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.layout = RunLayout(directory)
        self._info = info
        self._clock = clock
        self._progress_written = -math.inf
        write_run(directory, info)

    @property
    def info(self) -> RunInfo:
        return self._info

    def update(self, **values: Any) -> None:
        """Change fields of run.json."""
        self._info = self._info.changed_to(**values)
        write_run(self.layout.directory, self._info)

    def start_at(self, step: int | None) -> None:
        """Drop the records of later steps; None drops those of every step."""
        last = -1 if step is None else step
        for path in (self.layout.metrics, self.layout.checkpoints, self.layout.events):
            kept = [line for line in files.whole_lines(path) if int(line.get("step", 0)) <= last]
            if path.exists():
                files.replace(path, b"".join(map(files.to_line, kept)))
        for later in self.layout.rollout_steps():
            if later > last:
                self.layout.rollouts(later).unlink()
        self.layout.progress.unlink(missing_ok=True)
        self.update(step=max(last, 0))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """One line for the step. Undeclared names are a mistake in the program."""
        unknown = [name for name in values if not is_declared(name)]
        if unknown:
            raise ValueError(f"metrics not declared in records/metrics.py: {', '.join(unknown)}")
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._append(self.layout.metrics, [{"step": step, **finite, "time/at": self._clock()}])
        self.update(step=step)
        if odd := sorted(values.keys() - finite.keys()):
            self.event("warned", step=step, message=f"not a finite number: {', '.join(odd)}")

    def rollouts(self, records: Sequence[RolloutRecord]) -> None:
        """Add rollouts to the file of their step."""
        for step in sorted({record.step for record in records}):
            lines = [record.to_json() for record in records if record.step == step]
            self._append(self.layout.rollouts(step), lines)

    def event(self, kind: str, *, step: int | None = None, **fields: Any) -> None:
        """Something worth a note under the charts."""
        at = self._info.step if step is None else step
        self._append(
            self.layout.events,
            [
                {
                    "kind": kind,
                    "step": at,
                    "at": self._clock(),
                    "attempt": self._info.attempt,
                    **fields,
                }
            ],
        )

    def checkpoint(
        self,
        step: int,
        state_path: str,
        sampler_path: str | None,
        problems: Json,
        *,
        loop: Json | None = None,
        score: float | None = None,
    ) -> None:
        """Record a checkpoint the service has saved; from here on the run resumes at `step`."""
        line: Json = {
            "step": step,
            "at": self._clock(),
            "state_path": state_path,
            "sampler_path": sampler_path,
            "problems": problems,
            "loop": loop or {},
            "score": score,
        }
        files.append(self.layout.checkpoints, files.to_line(line), durable=True)
        self.event("saved", step=step, sampler_path=sampler_path)

    def checkpoint_deleted(self, step: int) -> None:
        """Record that a checkpoint is no longer kept."""
        line: Json = {"step": step, "at": self._clock(), "deleted": True}
        files.append(self.layout.checkpoints, files.to_line(line), durable=True)

    def progress(self, step: int, phase: str, done: int = 0, total: int = 0) -> None:
        """Where the present step stands. Counts in between are dropped when they come too fast."""
        now = self._clock()
        if 0 < done < total and now - self._progress_written < PROGRESS_SECONDS:
            return
        self._progress_written = now
        line = files.to_line(
            {"step": step, "phase": phase, "done": done, "total": total, "at": now}
        )
        files.replace(self.layout.progress, line, durable=False)

    def finish(self, status: RunStatus, message: str = "", *, exit_code: int = 0) -> None:
        """The last word of this attempt."""
        self.layout.progress.unlink(missing_ok=True)
        self.event(status.value, message=message)
        self.update(status=status, message=message, exit_code=exit_code, finished_at=self._clock())

    def _append(self, path: Path, lines: Sequence[Json]) -> None:
        files.append(path, b"".join(map(files.to_line, lines)))
