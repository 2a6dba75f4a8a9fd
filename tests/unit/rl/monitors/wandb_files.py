"""Reads what wandb wrote offline: a log of protobuf records in blocks of 32 KiB."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK = 1 << 15
FILE_HEADER = 7
RECORD_HEADER = struct.Struct("<IHB")  # checksum, length, kind: whole, first, middle or last part


def records(path: Path) -> Iterator[Any]:
    data, at, parts = path.read_bytes(), FILE_HEADER, b""
    while at + RECORD_HEADER.size <= len(data):
        left = BLOCK - at % BLOCK
        if left < RECORD_HEADER.size:
            at += left
            continue
        _, length, kind = RECORD_HEADER.unpack_from(data, at)
        at += RECORD_HEADER.size
        parts += data[at : at + length]
        at += length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def offline_runs(directory: Path) -> list[Path]:
    """The files of the attempts in order."""
    return sorted((directory / "wandb").glob("offline-run-*/*.wandb"))


def described(path: Path) -> Any:
    """The record of the run itself: id, project, tags, configuration."""
    return next(record.run for record in records(path) if record.HasField("run"))


def config(path: Path) -> dict[str, Any]:
    return {item.key: json.loads(item.value_json) for item in described(path).config.update}


def history(path: Path) -> list[dict[str, Any]]:
    """What was logged, without what wandb adds; tables as their first key alone."""
    lines: list[dict[str, Any]] = []
    for record in records(path):
        if record.HasField("history"):
            items = {i.nested_key[0] if i.nested_key else i.key: i for i in record.history.item}
            named = {name: item for name, item in items.items() if not name.startswith("_")}
            lines.append(
                {
                    name: json.loads(item.value_json) if len(item.nested_key) < 2 else "table"
                    for name, item in named.items()
                }
            )
    return lines


def tables(path: Path) -> dict[str, list[Any]]:
    """The rows of every table by the name of its file up to the first digit."""
    found = sorted((path.parent / "files" / "media" / "table").rglob("*.table.json"))
    return {file.name.split("_")[0]: json.loads(file.read_text())["data"] for file in found}
