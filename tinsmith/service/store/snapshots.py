"""Models in training on disk: each model's two newest states, and copies that samplers read."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from tinsmith.errors import StorageError

Write: TypeAlias = Callable[[Path], None]
_STATE = ".state"
_PART = ".part-"
KEPT = 2  # should the newest turn out to be damaged, there is one before it


class SnapshotShelf:
    """Files appear whole or not at all. A state's name is the number of the last op in it."""

    def __init__(self, root: Path) -> None:
        self._states = root / "models"
        self.copies = root / "samplers"
        for directory in (self._states, self.copies):
            with _writing(directory):
                directory.mkdir(parents=True, exist_ok=True)
            for left_over in directory.glob(f"**/{_PART}*"):
                _remove(left_over)

    # states of models

    def states(self, model: str) -> list[tuple[int, Path]]:
        """(number of the last op, file), newest first."""
        found = (self._states / model).glob(f"*{_STATE}")
        return sorted(((int(file.stem), file) for file in found), reverse=True)

    def write_state(self, model: str, seq_id: int, write: Write) -> int:
        """Writes a state and forgets all but the newest; the oldest op that the rest depends on."""
        directory = self._states / model
        target = directory / f"{seq_id:012d}{_STATE}"
        with _writing(target):
            directory.mkdir(exist_ok=True)
            self._place(target, write)
            states = self.states(model)
            for _, old in states[KEPT:]:
                old.unlink(missing_ok=True)
        return states[KEPT - 1][0] if len(states) >= KEPT else -1

    def set_aside(self, file: Path) -> None:
        """A state that cannot be read is kept for whoever wants to look at it, under another name."""
        with _writing(file):
            file.rename(file.with_suffix(".damaged"))

    def drop_model(self, model: str) -> None:
        _remove(self._states / model)

    # copies for samplers

    def copy(self, sampler: str) -> Path:
        return self.copies / sampler

    def write_copy(self, sampler: str, write: Write) -> None:
        target = self.copy(sampler)
        with _writing(target):
            if not target.exists():
                self._place(target, write)

    def drop_copy(self, sampler: str) -> None:
        _remove(self.copy(sampler))

    def keep_only(self, models: set[str], samplers: set[str]) -> None:
        """Removes what belongs to nobody any more."""
        for directory, live in ((self._states, models), (self.copies, samplers)):
            for path in directory.iterdir():
                if path.name not in live:
                    _remove(path)

    def copy_sizes(self) -> dict[str, int]:
        """Bytes of each copy, oldest first."""
        found = sorted(self.copies.iterdir(), key=lambda path: path.stat().st_mtime)
        return {
            path.name: sum(file.stat().st_size for file in path.iterdir())
            for path in found
            if not path.name.startswith(_PART)
        }

    def _place(self, target: Path, write: Write) -> None:
        part = target.with_name(f"{_PART}{uuid.uuid4().hex}")
        try:
            write(part)
            for file in [*part.iterdir(), part] if part.is_dir() else [part]:
                _sync(file)
            os.replace(part, target)
            _sync(target.parent)
        finally:
            _remove(part)


@contextmanager
def _writing(where: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"{where} could not be written: {error.strerror or error}; free some space there, or make "
            "it writable. Until then the requests themselves are kept, and nothing is overwritten."
        ) from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
