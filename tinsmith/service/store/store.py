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

    @property
    def trouble(self) -> str | None:
        """Why the last write failed, until one succeeds."""
        return self._writer.trouble

    def close(self) -> None:
        self._writer.close()
        self._reading.close()

    # sessions, models, samplers

    def add_session(self, row: SessionRow) -> Future[None]:
        return self.write(
            "INSERT INTO sessions (id, tags, user_metadata, sdk_version, project_id, display_name,"
            " created_at, heartbeat_at, owner) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.id,
                _text(row.tags),
                _text(row.user_metadata),
                row.sdk_version,
                row.project_id,
                row.display_name,
                row.created_at,
                row.heartbeat_at,
                row.owner,
            ),
        )

    def touch_session(self, session: str, at: float) -> Future[None]:
        return self.write("UPDATE sessions SET heartbeat_at = ? WHERE id = ?", (at, session))

    def finish_session(
        self, session: str, reason: str, detail: str | None, at: float
    ) -> Future[None]:
        """The first reason given stays. Its models are let go: nothing of them has to be done again."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE sessions SET finished = ?, detail = ?, finished_at = ?"
                " WHERE id = ? AND finished IS NULL",
                (reason, detail, at, session),
            )
            for (model,) in connection.execute(
                "SELECT id FROM models WHERE session_id = ? AND dropped IS NULL", (session,)
            ).fetchall():
                _drop_model(connection, model, f"its session is over ({detail or reason})")

        return self._writer.submit(job)

    def session(self, session: str) -> SessionRow | None:
        row = self.row("SELECT * FROM sessions WHERE id = ?", (session,))
        return None if row is None else session_row(row)

    def open_sessions(self) -> list[SessionRow]:
        """Sessions that nobody has ended."""
        return [
            session_row(row) for row in self.rows("SELECT * FROM sessions WHERE finished IS NULL")
        ]

    def add_model(self, row: ModelRow) -> Future[None]:
        return self.write(
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
        row = self.row("SELECT * FROM models WHERE id = ?", (model,))
        return None if row is None else model_row(row)

    def models_of_session(self, session: str) -> list[ModelRow]:
        rows = self.rows(
            "SELECT * FROM models WHERE session_id = ? ORDER BY created_at, id", (session,)
        )
        return [model_row(row) for row in rows]

    def drop_model(self, model: str, reason: str) -> Future[None]:
        """The model is let go; nothing of it has to be done again."""

        return self._writer.submit(lambda connection: _drop_model(connection, model, reason))

    def keep_model(self, model: str, seq_id: int) -> Future[None]:
        """Ops up to this one are on disk as weights, twice; their requests need not be kept."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE models SET kept_seq = ? WHERE id = ?", (seq_id, model))
            connection.execute(
                "UPDATE futures SET payload = NULL"
                " WHERE model_id = ? AND seq_id <= ? AND payload IS NOT NULL AND state != 'pending'",
                (model, seq_id),
            )

        return self._writer.submit(job)

    def add_sampler(self, row: SamplerRow) -> Future[None]:
        return self.write(
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
        row = self.row("SELECT * FROM samplers WHERE id = ?", (sampler,))
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

    def copies(self, model: str) -> list[str]:
        """Samplers that were made of a model without a name."""
        rows = self.rows("SELECT id FROM samplers WHERE model_id = ?", (model,))
        return [row["id"] for row in rows]

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
            if row.model_id is not None:
                connection.execute(
                    "UPDATE models SET last_request_at = ? WHERE id = ?",
                    (row.created_at, row.model_id),
                )
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
                " category = ?, finished_at = ?, payload = CASE WHEN ? THEN payload END WHERE id = ?",
                [
                    (
                        "failed" if row.error is not None else "finished",
                        row.result,
                        row.content_type,
                        row.error,
                        row.category,
                        row.finished_at,
                        row.keep_payload,
                        row.id,
                    )
                    for row in rows
                ],
            )

        return self._writer.submit(job)

    def journal(self, model: str, after: int) -> list[FutureRow]:
        """A model's requests after number `after`, in order; those done for good have no payload."""
        return self._futures("model_id = ? AND seq_id > ? ORDER BY seq_id", (model, after))

    def pending_of_model(self, model: str, up_to: int) -> list[FutureRow]:
        return self._futures(
            "model_id = ? AND seq_id <= ? AND state = 'pending' ORDER BY seq_id", (model, up_to)
        )

    def pending_samples(self) -> list[FutureRow]:
        return self._futures("state = 'pending' AND sampler_id IS NOT NULL ORDER BY created_at", ())

    def orphans(self) -> list[str]:
        """Futures that are pending although their session is over or their model was let go."""
        rows = self.rows(
            "SELECT id FROM futures WHERE state = 'pending' AND ("
            " model_id IN (SELECT m.id FROM models m JOIN sessions s ON s.id = m.session_id"
            "  WHERE m.dropped IS NOT NULL OR s.finished IS NOT NULL)"
            " OR sampler_id IN (SELECT p.id FROM samplers p JOIN sessions s ON s.id = p.session_id"
            "  WHERE s.finished IS NOT NULL))"
        )
        return [row["id"] for row in rows]

    def known(self, future: str) -> bool:
        return self.row("SELECT 1 FROM futures WHERE id = ?", (future,)) is not None

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
        """Forgets old results, but not the requests from which a model would be made again."""
        return self.write(
            "DELETE FROM futures WHERE finished_at < ? AND (sampler_id IS NOT NULL OR seq_id <="
            " (SELECT CASE WHEN dropped IS NULL THEN kept_seq ELSE seq_id END"
            "  FROM models WHERE models.id = model_id))",
            (finished_before,),
        )

    # checkpoints

    def add_checkpoint(self, row: Checkpoint) -> Future[None]:
        return self.write(
            "INSERT OR REPLACE INTO checkpoints (path, model_id, kind, name, base_model, spec,"
            " user_metadata, size_bytes, created_at, expires_at, seq_id, public)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
                row.seq_id,
                row.public,
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

    # what the other tables are built on

    def write(self, sql: str, values: tuple[Any, ...]) -> Future[None]:
        def job(connection: sqlite3.Connection) -> None:
            connection.execute(sql, values)

        return self._writer.submit(job)

    def rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        with self._reading_lock:
            try:
                return self._reading.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise storage_error(error, str(self.path)) from None

    def row(self, sql: str, values: tuple[Any, ...]) -> sqlite3.Row | None:
        rows = self.rows(sql, values)
        return rows[0] if rows else None

    def _results(self, where: str, values: tuple[Any, ...]) -> list[ResultRow]:
        rows = self.rows(
            "SELECT id, result, content_type, finished_at, error, category FROM futures"
            f" WHERE {where} ORDER BY seq_id",
            values,
        )
        return [ResultRow(**dict(row)) for row in rows]

    def _futures(self, where: str, values: tuple[Any, ...]) -> list[FutureRow]:
        rows = self.rows(
            "SELECT id, kind, seq_id, created_at, model_id, sampler_id, payload, state FROM futures"
            f" WHERE {where}",
            values,
        )
        return [FutureRow(**dict(row)) for row in rows]

    def _checkpoints(self, clause: str, values: tuple[Any, ...]) -> list[Checkpoint]:
        return [
            checkpoint_row(row) for row in self.rows(f"SELECT * FROM checkpoints {clause}", values)
        ]


def _drop_model(connection: sqlite3.Connection, model: str, reason: str) -> None:
    connection.execute(
        "UPDATE models SET dropped = ? WHERE id = ? AND dropped IS NULL", (reason, model)
    )
    connection.execute("UPDATE futures SET payload = NULL WHERE model_id = ?", (model,))


def session_row(row: sqlite3.Row) -> SessionRow:
    values = dict(row)
    values["tags"] = orjson.loads(row["tags"])
    values["user_metadata"] = orjson.loads(row["user_metadata"])
    return SessionRow(**values)


def model_row(row: sqlite3.Row) -> ModelRow:
    values = dict(row)
    values["spec"] = orjson.loads(row["spec"])
    values["user_metadata"] = orjson.loads(row["user_metadata"])
    return ModelRow(**values)


def checkpoint_row(row: sqlite3.Row) -> Checkpoint:
    values = dict(row)
    values["spec"] = orjson.loads(row["spec"])
    values["user_metadata"] = orjson.loads(row["user_metadata"])
    values["public"] = bool(row["public"])
    return Checkpoint(**values)
