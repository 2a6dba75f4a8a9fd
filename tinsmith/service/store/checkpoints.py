"""tinker:// paths and the directories they stand for."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tinsmith.errors import RequestError, StorageError
from tinsmith.service.store.rows import Checkpoint, Spec
from tinsmith.service.store.store import Store

Kind: TypeAlias = Literal["weights", "sampler_weights", "external_weights"]
KINDS: tuple[Kind, ...] = ("weights", "sampler_weights", "external_weights")
SCHEME = "tinker://"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_MODEL = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}:train:[0-9]{1,19}")
_STAGING = ".incoming-"  # no name may start with a dot


@dataclass(frozen=True)
class TinkerPath:
    """tinker://<model>/<kind>/<name>"""

    model_id: str
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.model_id}/{self.kind}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> TinkerPath:
        parts = text.removeprefix(SCHEME).split("/")
        if (
            not text.startswith(SCHEME)
            or len(parts) != 3
            or not _MODEL.fullmatch(parts[0])
            or parts[1] not in KINDS
        ):
            raise RequestError(
                f"{text!r} is not a checkpoint path; expected "
                "tinker://<model id>/<weights, sampler_weights or external_weights>/<name>."
            )
        return cls(parts[0], parts[1], check_name(parts[2]))


def check_name(name: str) -> str:
    """The name, if it is one safe path segment."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{name!r} cannot be a checkpoint's name; use 1 to 128 letters, digits, '.', '_' or '-', "
            "not starting with a dot."
        )
    return name


class CheckpointShelf:
    """The checkpoints on disk. A row exists only for a directory that is whole.

    `readable` says whether whoever asks may know of a checkpoint; others are as good as not there.
    """

    def __init__(
        self,
        root: Path,
        store: Store,
        clock: Callable[[], float] = time.time,
        readable: Callable[[Checkpoint], bool] = lambda row: True,
    ) -> None:
        self._root = root
        self._store = store
        self._clock = clock
        self._readable = readable
        self._moving = threading.Lock()  # a name's row and its directory change together
        root.mkdir(parents=True, exist_ok=True)
        for left_over in root.glob(f"*/*/{_STAGING}*"):
            shutil.rmtree(left_over, ignore_errors=True)

    def directory(self, path: TinkerPath) -> Path:
        return self._root / path.model_id / path.kind / path.name

    def find(self, text: str) -> tuple[Checkpoint, Path]:
        """A checkpoint and its directory; if there is none, a sentence that names those there are."""
        path = TinkerPath.parse(text)
        row = self._store.checkpoint(str(path))
        directory = self.directory(path)
        if row is not None and directory.is_dir() and self._is_there(row):
            return row, directory
        raise RequestError(f"there is no checkpoint {text}. {self._there_is(text)}", status=404)

    def _is_there(self, row: Checkpoint) -> bool:
        over = row.expires_at is not None and row.expires_at <= self._clock()
        return not over and self._readable(row)

    def _there_is(self, text: str) -> str:
        known = [row.path for row in self._store.checkpoints(limit=200) if self._is_there(row)]
        if not known:
            return "Nothing was saved yet."
        near = difflib.get_close_matches(text, known, n=3, cutoff=0.0)
        return f"There is {', '.join(near)}" + (
            "." if len(known) <= len(near) else f" and {len(known) - len(near)} more."
        )

    def made_by(self, text: str, seq_id: int) -> Checkpoint | None:
        """The checkpoint of that path, if it is the work of its model's op with this number."""
        row = self._store.checkpoint(text)
        return row if row is not None and row.seq_id == seq_id else None

    @contextmanager
    def writing(
        self,
        text: str,
        *,
        seq_id: int | None = None,
        base_model: str,
        spec: Spec,
        overwrite: bool = False,
        ttl_seconds: float | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> Generator[Path]:
        """A directory to write into; it becomes the checkpoint when the block ends without an error."""
        path = TinkerPath.parse(text)
        target = self.directory(path)
        if self._store.checkpoint(text) is not None and not overwrite:
            raise RequestError(
                f"the checkpoint {text} exists already; choose another name"
                + (" or save with overwrite." if path.kind == "weights" else ".")
            )

        def row(size: int) -> Checkpoint:
            now = self._clock()
            return Checkpoint(
                path=text,
                model_id=path.model_id,
                kind=path.kind,
                name=path.name,
                base_model=base_model,
                spec=spec,
                size_bytes=size,
                created_at=now,
                expires_at=None if ttl_seconds is None else now + ttl_seconds,
                user_metadata=user_metadata or {},
                seq_id=seq_id,
            )

        staged = target.parent / f"{_STAGING}{uuid.uuid4().hex}"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            yield staged
            size = sum(file.stat().st_size for file in staged.rglob("*") if file.is_file())
            with self._moving:
                self._put_in_place(staged, target)
                self._store.add_checkpoint(row(size)).result()
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"the checkpoint {text} could not be written to {target.parent}: "
                f"{error.strerror or error}; free some space or use another --directory."
            ) from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def remove(self, checkpoint: Checkpoint) -> None:
        """Forgets a checkpoint, then removes its files. One saved over it meanwhile stays."""
        directory = self.directory(TinkerPath.parse(checkpoint.path))
        gone = directory.parent / f"{_STAGING}{uuid.uuid4().hex}"
        with self._moving:
            row = self._store.checkpoint(checkpoint.path)
            if row is None or row.created_at != checkpoint.created_at:
                return
            self._store.write("DELETE FROM checkpoints WHERE path = ?", (row.path,)).result()
            if directory.is_dir():
                os.rename(directory, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _put_in_place(self, staged: Path, target: Path) -> None:
        """Swaps the new directory in; a former one of that name goes only when the new one is there."""
        former = target.parent / f"{_STAGING}{uuid.uuid4().hex}"
        if target.exists():
            os.rename(target, former)
        try:
            os.rename(staged, target)
        except OSError:
            if former.exists():
                os.rename(former, target)
            raise
        shutil.rmtree(former, ignore_errors=True)
