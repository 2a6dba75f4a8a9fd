"""Datasets by name, hub id or path. A row is a question with its answer; importing this loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

from tinsmith.envs.datasets.difficulty import Difficulties
from tinsmith.envs.datasets.files import ENDINGS
from tinsmith.envs.datasets.table import SOURCES
from tinsmith.envs.datasets.text import simple
from tinsmith.errors import ConfigError, one_of

ARITHMETIC = "arithmetic"
REASONING_GYM = "reasoning_gym:"
NAMES = (ARITHMETIC, *SOURCES)


def resolve(dataset: str) -> str:
    """A dataset given as a path, made absolute; any other name as it is."""
    if dataset in NAMES or dataset.startswith(REASONING_GYM):
        return dataset
    path = Path(dataset).expanduser()
    return str(path.resolve()) if path.exists() or _looks_like_a_path(dataset) else dataset


def usual_difficulty(dataset: str) -> str | None:
    """The difficulties of a dataset that are wanted when none are asked for; None is all."""
    return SOURCES[dataset].usual_difficulty if dataset in SOURCES else None


def check_name(dataset: str) -> None:
    """ConfigError unless it is a name of ours, a path that exists, or has the form of a hub id."""
    if dataset in NAMES or dataset.startswith(REASONING_GYM) or Path(dataset).is_dir():
        return
    if Path(dataset).is_file():
        if not dataset.lower().endswith(ENDINGS):
            raise ConfigError(
                f"env.dataset: a file must end in {', '.join(ENDINGS)} (got {dataset})."
            )
        return
    if _looks_like_a_path(dataset):
        raise ConfigError(f"env.dataset: there is no file or directory {dataset}.")
    if dataset.count("/") != 1 or not all(dataset.split("/")):
        choices = one_of("env.dataset", dataset, [*NAMES, f"{REASONING_GYM}<task>"])
        raise ConfigError(f"{choices} A hub id (owner/name) or a path is taken too.")


def check_choices(dataset: str, subset: str | None, difficulty: str | None) -> None:
    """ConfigError when a dataset has no such choice, or the choice cannot be read."""
    source = SOURCES.get(dataset)
    own = dataset in NAMES or dataset.startswith(REASONING_GYM)
    if difficulty is not None and difficulty != "all":
        Difficulties.parse(difficulty)
    if own and difficulty is not None and not (source and source.difficulty):
        those = ", ".join(name for name, source in SOURCES.items() if source.difficulty)
        raise ConfigError(
            f"env.difficulty is for {those} (got env.dataset={dataset}). Leave it out."
        )
    if own and subset is not None and not (source and source.part):
        those = ", ".join(name for name, source in SOURCES.items() if source.part)
        raise ConfigError(f"env.subset is for {those} (got env.dataset={dataset}). Leave it out.")
    if source and subset is not None and simple(subset) not in source.parts:
        raise ConfigError(one_of("env.subset", subset, list(source.parts)))


def _looks_like_a_path(dataset: str) -> bool:
    return dataset.startswith((".", "~", "/")) or dataset.endswith(ENDINGS)
