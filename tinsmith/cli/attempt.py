"""The process of a run: one attempt to train it to its end, with every outcome in its records."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tinsmith import __version__
from tinsmith.cli.job import Job
from tinsmith.cli.session import session
from tinsmith.errors import RunError, StorageError, TinsmithError
from tinsmith.records.layout import RunLayout
from tinsmith.records.run import RunInfo, RunStatus, read_run
from tinsmith.records.writer import RunWriter

if TYPE_CHECKING:
    import tinker

    from tinsmith.records.rollout import RolloutRecord
    from tinsmith.rl.loop import TrainResult
    from tinsmith.rl.monitors import Monitors
    from tinsmith.rl.types import Metrics

STOPPED = 130  # the exit code of a run that was asked to stop
GOES_ON = "The same command with the same log_path goes on from the last checkpoint."
# What the log says of a step: the first of these that it has.
HEADLINES = ("reward", "eval/reward", "nll", "eval/nll")


def run_attempt(directory: Path, job: Job) -> int:
    """Train in this process; the exit code says whether it finished (0), stopped (130) or failed."""
    directory = directory.expanduser().resolve()
    with _only_writer(directory):
        run = open_run(directory, job)
        stopper = Stopper(run)
        try:
            result = _train_to_the_end(job, run, stopper)
        except TinsmithError as error:
            return _failed(run, str(error), error.exit_code)
        except Exception as error:  # noqa: BLE001  the last resort: recorded, traceback in the log
            traceback.print_exc()
            return _failed(run, f"{type(error).__name__}: {error}", 1)
        if result.finished:
            run.finish(RunStatus.FINISHED)
            return 0
        run.finish(RunStatus.STOPPED, "asked to stop; the same command goes on", exit_code=STOPPED)
        return STOPPED


@contextlib.contextmanager
def _only_writer(directory: Path) -> Iterator[None]:
    """Held while this process writes the records, so that no second one does."""
    from filelock import FileLock, Timeout

    try:
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(RunLayout(directory).lock, timeout=0):
            yield
    except Timeout as error:
        raise RunError(
            f"another process is training in {directory}. Watch it: tinsmith runs watch {directory.name}"
        ) from error


def open_run(directory: Path, job: Job) -> RunWriter:
    """A writer for a new attempt; keeps what earlier attempts say of the run's beginning."""
    import psutil

    from tinsmith.cli.start import refuse_other_config

    before: RunInfo | None = None
    if RunLayout(directory).run.exists():
        before = read_run(directory)
        refuse_other_config(before, job, directory)
    now = time.time()
    info = RunInfo(
        id=directory.name,
        name=directory.name,
        status=RunStatus.STARTING,
        command=job.reproducing_command(),
        config=job.flat(),
        changed=job.changed(),
        git=_git_revision(),
        versions=_versions(),
        created_at=before.created_at if before else now,
        started_at=now,
        attempt=before.attempt + 1 if before else 1,
        step=before.step if before else 0,
        total_steps=job.total_steps,
        pid=os.getpid(),
        pid_started_at=psutil.Process().create_time(),
        service=job.config.base_url or "local",
    )
    return RunWriter(directory, info)


class Reporter:
    """Passes on what a run records: a line in its log, and everything to the monitors."""

    def __init__(self, run: RunWriter, monitors: Monitors) -> None:
        self._run = run
        self._monitors = monitors

    def __call__(self, step: int, values: Metrics, /) -> None:
        self._monitors.metrics(step, values)
        shown = next((name for name in HEADLINES if name in values), None)
        said = f" {shown} {values[shown]:.3f}" if shown else ""
        print(f"step {step}/{self._run.info.total_steps}{said}", flush=True)

    def rollouts(self, step: int, records: Sequence[RolloutRecord]) -> None:
        self._monitors.rollouts(step, records)


def _train_to_the_end(job: Job, run: RunWriter, stopper: Stopper) -> TrainResult:
    """Train beside the monitors, which hear at the end how it went."""
    from tinsmith.rl.monitors import open_monitors

    monitors = open_monitors(job.config, run)
    status = RunStatus.FAILED
    try:
        result = _train_on_service(job, run, stopper, Reporter(run, monitors))
        status = RunStatus.FINISHED if result.finished else RunStatus.STOPPED
        return result
    finally:
        monitors.finish(status.value)


def _train_on_service(job: Job, run: RunWriter, stopper: Stopper, report: Reporter) -> TrainResult:
    async def train(service: tinker.ServiceClient) -> TrainResult:
        stop = stopper.attach(asyncio.get_running_loop())
        return await job.run(run, service, stop, report)

    run.progress(run.info.step, "connect")
    with session(job.config.base_url, hint=GOES_ON) as connected:
        return connected.run(train(connected.service))


class Stopper:
    """SIGINT and SIGTERM: the first asks the loop to save and stop, the second ends at once."""

    def __init__(self, run: RunWriter) -> None:
        self._run = run
        self._asked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def attach(self, loop: asyncio.AbstractEventLoop) -> asyncio.Event:
        """The event that the training loop asks; set already when the signal came before it."""
        self._loop, self._event = loop, asyncio.Event()
        if self._asked:
            self._event.set()
        return self._event

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            with contextlib.suppress(StorageError):
                message = "stopped at once; it goes on from its last checkpoint"
                self._run.finish(RunStatus.STOPPED, message, exit_code=STOPPED)
            os._exit(STOPPED)
        self._asked = True
        print("asked to stop: saving", flush=True)
        if self._loop is not None and self._event is not None:
            self._loop.call_soon_threadsafe(self._event.set)


def _failed(run: RunWriter, message: str, exit_code: int) -> int:
    print(f"tinsmith: {message}", file=sys.stderr, flush=True)
    # On a full disk not even this can be written; the log and the exit code still say it.
    with contextlib.suppress(StorageError):
        run.finish(RunStatus.FAILED, message, exit_code=exit_code)
    return exit_code


def _versions() -> dict[str, str]:
    versions = {"tinsmith": __version__, "python": platform.python_version()}
    for package in ("tinker", "renderers", "transformers", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def _git_revision() -> str | None:
    """The commit of the working directory, with a + when there are changes; None outside of git."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
