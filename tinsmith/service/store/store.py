"""The database: sessions, models, samplers, futures and checkpoints in one SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import orjson

from tinsmith.service.store.rows import (
    Checkpoint,
    FutureRow,
    ModelRow,
    ResultRow,
    SamplerRow,
    SessionRow,
)
from tinsmith.service.store.schema import migrate
from tinsmith.service.store.writer import Writer, storage_error


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    return connection


class Store:
    """Writes go through one thread and return futures that resolve once committed; reads are direct."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            writing = _connect(path)
            migrate(writing)
            self._reading = _connect(path)
        except sqlite3.Error as error:
            raise storage_error(error, str(path)) from None
        self._reading_lock = threading.Lock()
        self._writer = Writer(writing, str(path))

    @classmethod
    def open(cls, path: Path) -> Store:
        """Opens or creates the file and brings its tables up to date."""
        return cls(path)

    def close(self) -> None:
        self._writer.close()
        self._reading.close()

    # sessions, models, samplers

    def add_session(self, row: SessionRow) -> Future[None]:
        return self._write(
            "INSERT INTO sessions (id, tags, user_metadata, sdk_version, project_id, display_name,"
            " created_at, heartbeat_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.id,
                _text(row.tags),
                _text(row.user_metadata),
                row.sdk_version,
                row.project_id,
                row.display_name,
                row.created_at,
                row.heartbeat_at,
            ),
        )

    def touch_session(self, session: str, at: float) -> Future[None]:
        return self._write("UPDATE sessions SET heartbeat_at = ? WHERE id = ?", (at, session))

    def finish_session(self, session: str, reason: str) -> Future[None]:
        """The first reason given stays."""
        return self._write(
            "UPDATE sessions SET finished = ? WHERE id = ? AND finished IS NULL", (reason, session)
        )

    def session(self, session: str) -> SessionRow | None:
        row = self._one("SELECT * FROM sessions WHERE id = ?", (session,))
        if row is None:
            return None
        return SessionRow(
            id=row["id"],
            created_at=row["created_at"],
            heartbeat_at=row["heartbeat_at"],
            tags=orjson.loads(row["tags"]),
            user_metadata=orjson.loads(row["user_metadata"]),
            sdk_version=row["sdk_version"],
            project_id=row["project_id"],
            display_name=row["display_name"],
            finished=row["finished"],
        )

    def add_model(self, row: ModelRow) -> Future[None]:
        return self._write(
            "INSERT OR IGNORE INTO models (id, session_id, base_model, spec, user_metadata,"
            " created_at) VALUES (?, ?, ?, ?, ?, ?)",
            (
                row.id,
                row.session_id,
                row.base_model,
                _text(row.spec),
                _text(row.user_metadata),
                row.created_at,
            ),
        )

    def model(self, model: str) -> ModelRow | None:
        row = self._one("SELECT * FROM models WHERE id = ?", (model,))
        if row is None:
            return None
        return ModelRow(
            id=row["id"],
            session_id=row["session_id"],
            base_model=row["base_model"],
            spec=orjson.loads(row["spec"]),
            created_at=row["created_at"],
            user_metadata=orjson.loads(row["user_metadata"]),
        )

    def add_sampler(self, row: SamplerRow) -> Future[None]:
        return self._write(
            "INSERT OR IGNORE INTO samplers (id, session_id, base_model, model_path, model_id,"
            " created_at) VALUES (?, ?, ?, ?, ?, ?)",
            (
                row.id,
                row.session_id,
                row.base_model,
                row.model_path,
                row.model_id,
                row.created_at,
            ),
        )

    def sampler(self, sampler: str) -> SamplerRow | None:
        row = self._one("SELECT * FROM samplers WHERE id = ?", (sampler,))
        if row is None:
            return None
        return SamplerRow(
            id=row["id"],
            session_id=row["session_id"],
            base_model=row["base_model"],
            created_at=row["created_at"],
            model_path=row["model_path"],
            model_id=row["model_id"],
        )

    def join_sampler(self, sampler: str) -> Future[int | None]:
        """A number for one more client of the sampler; never given twice, not even after a restart."""

        def job(connection: sqlite3.Connection) -> int | None:
            row = connection.execute(
                "UPDATE samplers SET clones = clones + 1 WHERE id = ? RETURNING clones", (sampler,)
            ).fetchone()
            return None if row is None else row["clones"]

        return self._writer.submit(job)

    # futures

    def add_future(self, row: FutureRow) -> Future[bool]:
        """Whether it is new; False: the same (owner, seq_id) is there already."""

        def job(connection: sqlite3.Connection) -> bool:
            cursor = connection.execute(
                "INSERT OR IGNORE INTO futures (id, kind, model_id, sampler_id, seq_id, payload,"
                " created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    row.id,
                    row.kind,
                    row.model_id,
                    row.sampler_id,
                    row.seq_id,
                    row.payload,
                    row.created_at,
                ),
            )
            return cursor.rowcount == 1

        return self._writer.submit(job)

    def finish_futures(self, rows: Sequence[ResultRow]) -> Future[None]:
        def job(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "UPDATE futures SET state = ?, result = ?, content_type = ?, error = ?,"
                " category = ?, finished_at = ?, payload = NULL WHERE id = ?",
                [
                    (
                        "failed" if row.error is not None else "finished",
                        row.result,
                        row.content_type,
                        row.error,
                        row.category,
                        row.finished_at,
                        row.id,
                    )
                    for row in rows
                ],
            )

        return self._writer.submit(job)

    def fail_pending(self, result: ResultRow) -> Future[int]:
        """Ends every pending future with this result; how many there were."""

        def job(connection: sqlite3.Connection) -> int:
            return connection.execute(
                "UPDATE futures SET state = 'failed', result = ?, content_type = ?, error = ?,"
                " category = ?, finished_at = ?, payload = NULL WHERE state = 'pending'",
                (
                    result.result,
                    result.content_type,
                    result.error,
                    result.category,
                    result.finished_at,
                ),
            ).rowcount

        return self._writer.submit(job)

    def result(self, future: str) -> ResultRow | None:
        """A finished future's answer; None while pending or when there is no such future."""
        rows = self._results("id = ? AND state != 'pending'", (future,))
        return rows[0] if rows else None

    def results_of_sampler(self, sampler: str, first: int, end: int) -> list[ResultRow]:
        """Finished futures of a sampler whose seq_id is in [first, end)."""
        return self._results(
            "sampler_id = ? AND seq_id >= ? AND seq_id < ? AND state != 'pending'",
            (sampler, first, min(end, 2**63 - 1)),
        )

    def delete_futures(self, futures: Iterable[str]) -> Future[None]:
        rows = [(future,) for future in futures]

        def job(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM futures WHERE id = ?", rows)

        return self._writer.submit(job)

    def prune_futures(self, finished_before: float) -> Future[None]:
        return self._write("DELETE FROM futures WHERE finished_at < ?", (finished_before,))

    # checkpoints

    def add_checkpoint(self, row: Checkpoint) -> Future[None]:
        return self._write(
            "INSERT OR REPLACE INTO checkpoints (path, model_id, kind, name, base_model, spec,"
            " user_metadata, size_bytes, created_at, expires_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.path,
                row.model_id,
                row.kind,
                row.name,
                row.base_model,
                _text(row.spec),
                _text(row.user_metadata),
                row.size_bytes,
                row.created_at,
                row.expires_at,
            ),
        )

    def checkpoint(self, path: str) -> Checkpoint | None:
        rows = self._checkpoints("WHERE path = ?", (path,))
        return rows[0] if rows else None

    def checkpoints(self, model: str | None = None, *, limit: int = 1000) -> list[Checkpoint]:
        """Newest first."""
        if model is None:
            return self._checkpoints("ORDER BY created_at DESC LIMIT ?", (limit,))
        return self._checkpoints(
            "WHERE model_id = ? ORDER BY created_at DESC LIMIT ?", (model, limit)
        )

    # inside

    def _write(self, sql: str, values: tuple[Any, ...]) -> Future[None]:
        def job(connection: sqlite3.Connection) -> None:
            connection.execute(sql, values)

        return self._writer.submit(job)

    def _all(self, sql: str, values: tuple[Any, ...]) -> list[sqlite3.Row]:
        with self._reading_lock:
            try:
                return self._reading.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise storage_error(error, str(self.path)) from None

    def _one(self, sql: str, values: tuple[Any, ...]) -> sqlite3.Row | None:
        rows = self._all(sql, values)
        return rows[0] if rows else None

    def _results(self, where: str, values: tuple[Any, ...]) -> list[ResultRow]:
        rows = self._all(
            "SELECT id, result, content_type, finished_at, error, category FROM futures"
            f" WHERE {where} ORDER BY seq_id",
            values,
        )
        return [ResultRow(**dict(row)) for row in rows]

    def _checkpoints(self, clause: str, values: tuple[Any, ...]) -> list[Checkpoint]:
        rows = self._all(f"SELECT * FROM checkpoints {clause}", values)
        return [
            Checkpoint(
                path=row["path"],
                model_id=row["model_id"],
                kind=row["kind"],
                name=row["name"],
                base_model=row["base_model"],
                spec=orjson.loads(row["spec"]),
                size_bytes=row["size_bytes"],
                created_at=row["created_at"],
                expires_at=row["expires_at"],
                user_metadata=orjson.loads(row["user_metadata"]),
            )
            for row in rows
        ]
