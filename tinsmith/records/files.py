"""Writing files so that a reader sees the old contents or the new, never half of them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

from tinsmith.errors import StorageError

Json: TypeAlias = dict[str, Any]  # records hold whatever JSON holds


def to_line(value: Json) -> bytes:
    """One JSON object as one line. NaN and infinity are refused: they are not JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # A lone surrogate cannot be encoded; model text may decode to one.
    return text.encode("utf-8", errors="replace") + b"\n"


def from_line(line: bytes) -> Json | None:
    """The object on a line; None when the line is cut short or damaged."""
    try:
        value: object = json.loads(line)
    except ValueError:
        return None
    return cast(Json, value) if isinstance(value, dict) else None


def replace(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put `data` at `path` in one step; `durable` also survives a loss of power."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unwritable(path, error) from error


def append(path: Path, lines: bytes, *, durable: bool = False) -> None:
    """Add whole lines to the end of a file, or none of them when the disk is full."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, lines)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unwritable(path, error) from error


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def whole_lines(path: Path) -> Iterator[Json]:
    """Every complete record of a file in order; none when there is no file."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n") and (value := from_line(line)) is not None:
                    yield value
    except FileNotFoundError:
        return


def unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"cannot write {path}: {error.strerror or error}. "
        "Free some space or choose another log_path, then run the same command again."
    )
