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
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tinsmith import __version__, settings
from tinsmith.cli.config import flat, parse, split
from tinsmith.errors import ModelError, RunError, ServiceError, StorageError, TinsmithError
from tinsmith.records.layout import RunLayout
from tinsmith.records.reader import RunReader
from tinsmith.records.run import RunInfo, RunStatus, read_run
from tinsmith.records.writer import RunWriter
from tinsmith.rl.config import TrainConfig

if TYPE_CHECKING:
    import tinker

    from tinsmith.chat.render import Renderer
    from tinsmith.rl.loop import TrainResult
    from tinsmith.rl.types import Metrics

STOPPED = 130  # the exit code of a run that was asked to stop
GOODBYE_SECONDS = 5.0
WATCH_SECONDS = 2.0  # between two looks at whether the local service lives


def run_attempt(directory: Path, words: Sequence[str]) -> int:
    """Train in this process; the exit code says whether it finished (0), stopped (130) or failed."""
    config = parse(words)
    directory = directory.expanduser().resolve()
    with _only_writer(directory):
        run = open_run(directory, config, words)
        stopper = Stopper(run)
        try:
            result = _train_to_the_end(config, run, stopper)
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


def open_run(directory: Path, config: TrainConfig, words: Sequence[str]) -> RunWriter:
    """A writer for a new attempt; keeps what earlier attempts say of the run's beginning."""
    import psutil

    from tinsmith.cli.train import refuse_other_config

    before: RunInfo | None = None
    if RunLayout(directory).run.exists():
        before = read_run(directory)
        refuse_other_config(before, config)
    given = [f"{key}={value}" for key, value in split(words).items() if key != "log_path"]
    now = time.time()
    info = RunInfo(
        id=directory.name,
        name=directory.name,
        status=RunStatus.STARTING,
        command=["tinsmith", "train", *given],
        config=flat(config),
        changed=given,
        git=_git_revision(),
        versions=_versions(),
        created_at=before.created_at if before else now,
        started_at=now,
        attempt=before.attempt + 1 if before else 1,
        step=before.step if before else 0,
        total_steps=config.num_batches,
        pid=os.getpid(),
        pid_started_at=psutil.Process().create_time(),
        service=config.base_url or "local",
    )
    return RunWriter(directory, info)


def _train_to_the_end(config: TrainConfig, run: RunWriter, stopper: Stopper) -> TrainResult:
    from tinsmith.connect import connect
    from tinsmith.rl.monitor import Monitor

    monitor = Monitor(config, run)
    run.progress(run.info.step, "connect")

    def report(step: int, values: Metrics) -> None:
        monitor.log(step, values)
        shown = "eval/reward" if "eval/reward" in values and "reward" not in values else "reward"
        print(f"step {step}/{config.num_batches} {shown} {values.get(shown, 0.0):.3f}", flush=True)

    service = connect(config.base_url)
    try:
        work = _train(config, run, service, stopper, report)
        if config.base_url in (None, "local"):
            work = _while_local_service_lives(work)
        return asyncio.run(work)
    finally:
        monitor.finish()
        _say_goodbye(service)


def _say_goodbye(service: tinker.ServiceClient) -> None:
    """End the session so that the service can forget its model at once; it would find out anyway."""
    import tinker

    with contextlib.suppress(tinker.TinkerError, TimeoutError):
        service.close("success").result(timeout=GOODBYE_SECONDS)


async def _while_local_service_lives(work: Coroutine[Any, Any, TrainResult]) -> TrainResult:
    """Fail when the local service's process ends: nobody restarts it, and the SDK would wait for hours."""
    from tinsmith.connect import read_address
    from tinsmith.runs.process import is_alive

    training = asyncio.ensure_future(work)
    address = read_address(settings.service_file())
    try:
        while not (await asyncio.wait({training}, timeout=WATCH_SECONDS))[0]:
            if address is not None and not is_alive(address.pid, address.started_at):
                raise ServiceError(
                    f"the local service (process {address.pid}) has ended. Its log is in "
                    f"{settings.service_directory()}. The same command with the same log_path goes on "
                    "from the last checkpoint."
                )
        return training.result()
    finally:
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)


async def _train(
    config: TrainConfig,
    run: RunWriter,
    service: tinker.ServiceClient,
    stopper: Stopper,
    report: Callable[[int, Metrics], None],
) -> TrainResult:
    """Bring model, problems and records together and train."""
    from tinsmith.rl.loop import Loop
    from tinsmith.rl.model import TrainedModel
    from tinsmith.rl.resume import find_start, open_trainer
    from tinsmith.rl.waiting import in_thread

    stop = stopper.attach(asyncio.get_running_loop())
    start = find_start(RunReader(run.layout.directory))
    run.progress(start.step, "load model")
    client = await open_trainer(service, config, start, run.info.id)
    renderer = await in_thread(lambda: _renderer(client, config))
    problems = config.env.build(renderer, config.seed, "train")
    held_out = config.env.build(renderer, config.seed, "eval")
    if start.problems is not None:
        problems.restore(start.problems)
    # Only now: an attempt that cannot even begin leaves the records of the last one alone.
    run.start_at(start.step if start.state_path else None)
    run.update(status=RunStatus.RUNNING)
    run.event("started", message=f"attempt {run.info.attempt}")
    if start.state_path:
        run.event("resumed", message=f"from {start.state_path}")
    run.event(
        "ready", message=f"{len(problems):,} problems to train on, {len(held_out):,} held out"
    )
    model = TrainedModel(client, config)
    loop = Loop(config, problems, held_out, model, renderer, run, stop, report)
    return await loop.train(start)


def _renderer(client: tinker.TrainingClient, config: TrainConfig) -> Renderer:
    from tinsmith.chat.render import make_renderer

    try:
        tokenizer = client.get_tokenizer()
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the tokenizer of {config.model_name} cannot be loaded: {error}. Check model_name, and "
            "the network when it names a model on the hub."
        ) from error
    return make_renderer(tokenizer, config.model_name)


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
