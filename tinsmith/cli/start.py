"""Starts a run of any kind as a process of its own and watches it; goes on with one that exists."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tinsmith import settings
from tinsmith.cli.job import Job
from tinsmith.errors import ConfigError, RunError, StorageError, one_of
from tinsmith.records.layout import RunLayout
from tinsmith.records.run import RunInfo, RunStatus

ATTACHED = "--attached-run"  # how the process of a run is told its directory
# What may change between two attempts of a run without making it another run: the names, or where
# they begin.
FREE_KEYS = (
    "base_url",
    "dry_run",
    "eval_every",
    "keep_last",
    "log_path",
    "rollout.concurrent",
    "save_every",
    "tensorboard",
    "wandb.",
)
LENGTH_KEYS = ("num_batches", "num_epochs")  # free as well, unless the learning rate follows them


def start(make_job: Callable[[Sequence[str]], Job], words: list[str]) -> int:
    """Start a run, or go on with one, and show it until it is over or the viewer leaves."""
    if words and words[0] == ATTACHED:
        from tinsmith.cli.attempt import run_attempt

        if len(words) < 2:
            raise ConfigError(f"{ATTACHED} must be followed by the run's directory.")
        return run_attempt(Path(words[1]), make_job(words[2:]))
    job = make_job(words)
    check_before_start(job)
    if job.config.dry_run:
        job.show_plan()
        return 0
    directory = find_directory(job)
    before = earlier_attempt(directory, job)
    if before is not None and is_complete(before, job):
        values = job.flat()
        length = next(key for key in LENGTH_KEYS if values.get(key) is not None)
        print(
            f"{directory.name} is finished: {before.step} steps are done. To train further, raise "
            f"{length}; to begin anew, choose another log_path."
        )
        return 0
    return start_and_watch(directory, job, words, attempt=before.attempt + 1 if before else 1)


def check_before_start(job: Job) -> None:
    """What can be refused with a sentence before there is a run."""
    from tinsmith.connect import check_target
    from tinsmith.rl.monitors import check_monitors

    check_model_name(job.config.model_name)
    check_target(job.config.base_url)
    check_monitors(job.config)
    job.check()


def check_model_name(name: str) -> None:
    """Refuse what cannot be a model on any service: a path to nothing, an embedded one we lack."""
    path = Path(name).expanduser()
    known_path = path.is_dir() or (path.suffix == ".gguf" and path.is_file())
    if name.startswith(("/", "./", "../", "~")) and not known_path:
        raise ConfigError(
            f"model_name {name} is no directory and no .gguf file. Give a directory in Hugging Face layout, a "
            f"GGUF file, a hub id, or {settings.EMBEDDED_MODEL}."
        )
    family = settings.EMBEDDED_MODEL.split("/")[0]
    if name != settings.EMBEDDED_MODEL and name.split("/")[0] == family and not path.is_dir():
        raise ConfigError(one_of("model_name", name, [settings.EMBEDDED_MODEL]))


def find_directory(job: Job) -> Path:
    """The run's directory: the one asked for, else a new one with a name of its own."""
    from tinsmith.runs.naming import claim_directory

    if job.config.log_path is None:
        return claim_directory(random.Random(), settings.runs_directory())
    directory = Path(job.config.log_path).expanduser().resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        foreign = [
            path.name for path in directory.iterdir() if path.name not in ("logs", "run.lock")
        ]
    except FileExistsError as error:
        raise ConfigError(
            f"log_path must be a directory, and {directory} is a file. Choose another log_path."
        ) from error
    except OSError as error:
        raise StorageError(
            f"cannot use {directory}: {error.strerror or error}. Choose another log_path."
        ) from error
    if foreign and not RunLayout(directory).run.exists():
        raise ConfigError(
            f"log_path {directory} is not empty and holds no run (it has {foreign[0]}). "
            "Choose a new or an empty directory."
        )
    return directory


def earlier_attempt(directory: Path, job: Job) -> RunInfo | None:
    """What an earlier attempt left there; ConfigError when this command cannot go on with it."""
    from tinsmith.runs.manager import read_truth

    if not RunLayout(directory).run.exists():
        return None
    info = read_truth(directory)
    if not info.status.over:
        raise ConfigError(
            f"{directory.name} is still running (process {info.pid}). Watch it: tinsmith runs watch "
            f"{directory.name}. To start another run, choose another log_path."
        )
    refuse_other_config(info, job, directory)
    return info


def refuse_other_config(info: RunInfo, job: Job, directory: Path) -> None:
    """A run goes on only as what it was begun as: the same kind, with settings that fit."""
    if info.status is not RunStatus.FINISHED and not RunLayout(directory).metrics.exists():
        return  # it never got to its first line of metrics: there is nothing to contradict
    if info.command[:1] and info.command[1:2] != [job.command]:
        raise ConfigError(
            f"{info.name} was started by `tinsmith {' '.join(info.command[1:2])}`, so `tinsmith "
            f"{job.command}` cannot go on with it. Choose another log_path."
        )
    now = job.flat()
    differing = [
        key
        for key in sorted(now.keys() | info.config.keys())
        if not key.startswith(FREE_KEYS) and now.get(key) != info.config.get(key)
    ]
    differences = [
        f"{key} was {info.config.get(key)}, now {now.get(key)}"
        for key in differing
        if key not in LENGTH_KEYS
    ]
    if differences:
        raise ConfigError(
            f"{info.name} was started with other settings, so it cannot go on: "
            f"{'; '.join(differences)}. Give the same settings, or choose another log_path."
        )
    schedule = job.config.optim.schedule
    if differing and schedule != "constant":
        key = differing[0]
        raise ConfigError(
            f"{info.name} was started with {key}={info.config.get(key)} and optim.schedule={schedule}: with "
            f"{key}={now.get(key)} the learning rates of the steps already done would have been others. "
            f"Give {key}={info.config.get(key)}, or choose another log_path."
        )


def is_complete(info: RunInfo, job: Job) -> bool:
    """Whether the earlier attempt did all that this command asks for."""
    if info.status is not RunStatus.FINISHED:
        return False
    now = job.flat()
    same_length = all(now.get(key) == info.config.get(key) for key in LENGTH_KEYS)
    return same_length or info.step >= job.total_steps


def start_and_watch(directory: Path, job: Job, words: list[str], *, attempt: int) -> int:
    from tinsmith.cli.live import watch
    from tinsmith.runs.manager import RunManager
    from tinsmith.runs.process import spawn

    RunManager().register(directory)
    try:
        log = RunLayout(directory).start_attempt(attempt)
    except OSError as error:
        raise RunError(
            f"cannot write to {directory}: {error.strerror or error}. Choose another log_path."
        ) from error
    command = [sys.executable, "-m", "tinsmith", job.command, ATTACHED, str(directory), *words]
    pid = spawn(command, directory=Path.cwd(), log=log)
    return watch(directory, child=True, pid=pid)
