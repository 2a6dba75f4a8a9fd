"""RunManager: finds runs, tells the truth about them, stops them, and pages through their records."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinsmith import settings
from tinsmith.errors import RunError, StorageError
from tinsmith.records.files import Json
from tinsmith.records.layout import RunLayout
from tinsmith.records.reader import RunReader
from tinsmith.records.rollout import RolloutRecord
from tinsmith.records.run import RunInfo, RunStatus, read_run, write_run
from tinsmith.runs import process

GRACE_SECONDS = 60.0  # a checkpoint of a large adapter takes a while


@dataclass(frozen=True)
class Run:
    """One run: where it lies and what its run.json says, corrected by whether its process lives."""

    directory: Path
    info: RunInfo

    @property
    def name(self) -> str:
        return self.directory.name


def read_truth(directory: Path) -> RunInfo:
    """run.json, except that an unfinished run whose process is gone is LOST."""
    info = read_run(directory)
    if not _vanished(info):
        return info
    info = read_run(directory)  # its last word may have come between reading and looking
    if not _vanished(info):
        return info
    return info.changed_to(
        status=RunStatus.LOST,
        message="its process vanished without finishing (killed, or the machine went down)",
    )


def _vanished(info: RunInfo) -> bool:
    if info.status.over or info.pid is None:
        return False
    return not process.is_alive(info.pid, info.pid_started_at or 0.0)


def load(directory: Path) -> Run:
    """The run in a directory, wherever it is."""
    return Run(directory, read_truth(directory))


class RunManager:
    """The runs of one machine: those under `root`, and those elsewhere that `index` lists."""

    def __init__(self, root: Path | None = None, index: Path | None = None) -> None:
        self._root = root or settings.runs_directory()
        self._index = index or settings.home() / "runs.index"

    # ── finding ──

    def register(self, directory: Path) -> None:
        """Remember a run that lies outside the root, so that it is listed and found by its name."""
        directory = directory.resolve()
        if directory.parent == self._root.resolve() or directory in self._registered():
            return
        try:
            self._index.parent.mkdir(parents=True, exist_ok=True)
            with self._index.open("ab") as file:
                file.write(os.fsencode(directory) + b"\n")
        except OSError as error:
            raise StorageError(
                f"cannot note the run in {self._index}: {error.strerror or error}. "
                "Make it writable, or set TINSMITH_HOME to a directory that is."
            ) from error

    def list(self, *, status: RunStatus | None = None, limit: int | None = 50) -> list[Run]:
        """The newest runs first. A directory whose run.json cannot be read is left out."""
        runs: list[Run] = []
        for directory in self._directories():
            try:
                run = load(directory)
            except RunError:
                continue
            if status in (None, run.info.status):
                runs.append(run)
        runs.sort(key=lambda run: run.info.created_at, reverse=True)
        return runs[:limit]

    def get(self, name: str) -> Run:
        """The run with this name, or in this directory; RunError names the nearest ones."""
        named = [directory for directory in self._directories() if directory.name == name]
        if len(named) == 1:
            return load(named[0])
        if len(named) > 1:
            places = " or ".join(str(directory) for directory in named)
            raise RunError(f"there are {len(named)} runs named {name}: say {places}.")
        directory = Path(name).expanduser()
        if RunLayout(directory).run.exists():
            return load(directory.resolve())
        raise RunError(self._not_found(name))

    # ── stopping ──

    def stop(self, name: str, *, grace_seconds: float = GRACE_SECONDS) -> Run:
        """Ask the run to save and stop; end it firmly when it has not after the grace."""
        run = self.get(name)
        if run.info.status.over:
            raise RunError(f"{run.name} is not running: it is {run.info.status}.")
        if run.info.pid is None or run.info.pid_started_at is None:
            raise RunError(f"{run.name} has no process yet; try again in a moment.")
        by_itself = process.stop(run.info.pid, run.info.pid_started_at, grace_seconds=grace_seconds)
        if not by_itself:
            record_kill(
                run.directory, f"ended: it had not stopped {grace_seconds:.0f} s after it was asked"
            )
        return load(run.directory)

    # ── records ──

    def metrics(self, name: str, *, keys: Sequence[str] = (), since: int = 0) -> Iterator[Json]:
        """One line a step from `since` on, with all metrics or only `keys`."""
        for line in RunReader(self.get(name).directory).metrics(since=since):
            wanted = {"step", *keys} if keys else line.keys()
            yield {key: value for key, value in line.items() if key in wanted}

    def events(self, name: str) -> Iterator[Json]:
        return RunReader(self.get(name).directory).events()

    def rollouts(
        self, name: str, step: int, *, problem_id: str | None = None
    ) -> Iterator[RolloutRecord]:
        return RunReader(self.get(name).directory).rollouts(step, problem_id=problem_id)

    def log(self, name: str, *, tail: int = 200) -> list[str]:
        return RunReader(self.get(name).directory).log(tail=tail)

    # ── inside ──

    def _registered(self) -> list[Path]:
        try:
            lines = self._index.read_bytes().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []
        return list(dict.fromkeys(Path(os.fsdecode(line)) for line in lines if line))

    def _directories(self) -> list[Path]:
        inside = sorted(self._root.iterdir()) if self._root.is_dir() else []
        candidates = [*inside, *self._registered()]
        return [directory for directory in candidates if RunLayout(directory).run.exists()]

    def _not_found(self, name: str) -> str:
        names = [directory.name for directory in self._directories()]
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        if near:
            return f"there is no run {name!r}. Did you mean {' or '.join(near)}?"
        if names:
            return f"there is no run {name!r}. `tinsmith runs` lists yours."
        return f"there is no run {name!r}: no runs are in {self._root} yet. `tinsmith train` starts one."


def record_kill(directory: Path, message: str) -> None:
    """Say in run.json that the run was ended from outside; its process, now dead, cannot."""
    if not RunLayout(directory).run.exists():
        return  # it was ended before it had written anything
    info = read_run(directory)
    if not info.status.over:
        write_run(
            directory,
            info.changed_to(status=RunStatus.STOPPED, message=message, finished_at=time.time()),
        )
