"""`tinsmith train key=value ...`: starts a run as a process of its own and watches it."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tinsmith import settings
from tinsmith.cli.config import flat, help_text, parse
from tinsmith.errors import ConfigError, RunError, StorageError, one_of
from tinsmith.records.layout import RunLayout
from tinsmith.records.run import RunInfo, RunStatus
from tinsmith.rl.config import TrainConfig

ATTACHED = "--attached-run"  # how the process of a run is told its directory
# What may change between two attempts of a run without making it another run.
FREE_KEYS = ("num_batches", "save_every", "log_path", "base_url", "wandb.")


def run(argv: Sequence[str]) -> int:
    """Start a run, or go on with one, and show it until it is over or the viewer leaves."""
    words = list(argv)
    if any(word in ("-h", "--help", "help") for word in words):
        print(help_text())
        return 0
    if words and words[0] == ATTACHED:
        from tinsmith.cli.attempt import run_attempt

        if len(words) < 2:
            raise ConfigError(f"{ATTACHED} must be followed by the run's directory.")
        return run_attempt(Path(words[1]), words[2:])
    config = parse(words)
    check_before_start(config)
    directory = find_directory(config)
    before = earlier_attempt(directory, config)
    if before is not None and is_complete(before, config):
        print(
            f"{directory.name} is finished: {before.step} steps are done. To train further, raise "
            f"num_batches; to begin anew, choose another log_path."
        )
        return 0
    return start_and_watch(directory, words, attempt=before.attempt + 1 if before else 1)


def check_before_start(config: TrainConfig) -> None:
    """What can be refused with a sentence before there is a run."""
    from tinsmith.connect import check_target
    from tinsmith.rl.monitor import check_wandb

    check_model_name(config.model_name)
    check_target(config.base_url)
    check_wandb(config)


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


def find_directory(config: TrainConfig) -> Path:
    """The run's directory: the one asked for, else a new one with a name of its own."""
    from tinsmith.runs.naming import claim_directory

    if config.log_path is None:
        return claim_directory(random.Random(), settings.runs_directory())
    directory = Path(config.log_path).expanduser().resolve()
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


def earlier_attempt(directory: Path, config: TrainConfig) -> RunInfo | None:
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
    refuse_other_config(info, config)
    return info


def refuse_other_config(info: RunInfo, config: TrainConfig) -> None:
    now = flat(config)
    differences = [
        f"{key} was {info.config.get(key)}, now {now.get(key)}"
        for key in sorted(now.keys() | info.config.keys())
        if not key.startswith(FREE_KEYS) and now.get(key) != info.config.get(key)
    ]
    if differences:
        raise ConfigError(
            f"{info.name} was started with other settings, so it cannot go on: "
            f"{'; '.join(differences)}. Give the same settings, or choose another log_path."
        )


def is_complete(info: RunInfo, config: TrainConfig) -> bool:
    return info.status is RunStatus.FINISHED and info.step >= config.num_batches


def start_and_watch(directory: Path, words: list[str], *, attempt: int) -> int:
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
    command = [sys.executable, "-m", "tinsmith", "train", ATTACHED, str(directory), *words]
    pid = spawn(command, directory=Path.cwd(), log=log)
    return watch(directory, child=True, pid=pid)
