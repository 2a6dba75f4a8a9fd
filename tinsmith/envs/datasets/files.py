"""Rows from JSONL, JSON, CSV and Parquet files; a line that is no row comes as None and is counted."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tinsmith.errors import ConfigError

Raw: TypeAlias = dict[str, Any]  # a row as its file has it
ENDINGS = (".jsonl", ".json", ".parquet", ".csv")
BATCH = 4096  # rows of a Parquet file held at once


def find(folder: Path, split: str) -> list[Path]:
    """The files of a split: `train.jsonl`, or numbered parts such as `train-00000-of-00002.parquet`."""
    for ending in ENDINGS:
        whole = folder / f"{split}{ending}"
        found = [whole] if whole.is_file() else sorted(folder.glob(f"{split}-*{ending}"))
        if found:
            return found
    return []


def read(path: Path, columns: Sequence[str] = ()) -> Iterator[Raw | None]:
    """The rows of one file, in order; a Parquet file is spared the columns nobody asked for."""
    parquet = partial(_parquet, columns=columns)
    readers = {".jsonl": _lines, ".json": _json, ".parquet": parquet, ".csv": _csv}
    reader = readers[path.suffix.lower()]
    try:
        yield from reader(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Check the file.") from error


def _lines(path: Path) -> Iterator[Raw | None]:
    with path.open(encoding="utf-8-sig") as lines:
        for line in lines:
            if line.strip():
                yield _object(line)


def _object(line: str) -> Raw | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _json(path: Path) -> Iterator[Raw | None]:
    """A list of rows; a file of lines that is only named .json is read as lines."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):
        rows = None
    if isinstance(rows, list):
        for row in rows:
            yield row if isinstance(row, dict) else None
    else:
        yield from _lines(path)


def _csv(path: Path) -> Iterator[Raw | None]:
    csv.field_size_limit(
        min(sys.maxsize, 2**31 - 1)
    )  # solutions may be longer than the usual limit
    with path.open(encoding="utf-8-sig", newline="") as lines:
        for row in csv.DictReader(lines):
            yield {name: value for name, value in row.items() if name is not None}


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[Raw | None]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ConfigError(
            f'{path} is a Parquet file, which needs pyarrow: pip install "tinsmith[math]".'
        ) from error
    try:
        with ParquetFile(path) as file:
            wanted = list(columns) if set(columns) <= set(file.schema_arrow.names) else []
            for batch in file.iter_batches(batch_size=BATCH, columns=wanted or None):
                yield from batch.to_pylist()
    except ArrowException as error:
        raise ConfigError(f"{path} is not a Parquet file: {error}. Check the file.") from error
