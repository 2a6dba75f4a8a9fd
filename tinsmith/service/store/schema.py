"""The tables, as numbered migrations; a file's `user_version` says how many it has seen."""

from __future__ import annotations

import sqlite3

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        tags TEXT NOT NULL,
        user_metadata TEXT NOT NULL,
        sdk_version TEXT NOT NULL,
        project_id TEXT,
        display_name TEXT,
        created_at REAL NOT NULL,
        heartbeat_at REAL NOT NULL,
        finished TEXT
    );
    CREATE TABLE models (
        id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL REFERENCES sessions(id),
        base_model TEXT NOT NULL,
        spec TEXT NOT NULL,
        user_metadata TEXT NOT NULL,
        created_at REAL NOT NULL
    );
    CREATE INDEX models_of_session ON models(session_id);
    CREATE TABLE samplers (
        id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL REFERENCES sessions(id),
        base_model TEXT NOT NULL,
        model_path TEXT,
        model_id TEXT,
        clones INTEGER NOT NULL DEFAULT 0,
        created_at REAL NOT NULL
    );
    CREATE INDEX samplers_of_session ON samplers(session_id);
    CREATE TABLE futures (
        id TEXT PRIMARY KEY,
        kind TEXT NOT NULL,
        model_id TEXT,
        sampler_id TEXT,
        seq_id INTEGER NOT NULL,
        payload BLOB,
        state TEXT NOT NULL DEFAULT 'pending',
        result BLOB,
        content_type TEXT,
        error TEXT,
        category TEXT,
        created_at REAL NOT NULL,
        finished_at REAL,
        CHECK ((model_id IS NULL) != (sampler_id IS NULL))
    );
    CREATE UNIQUE INDEX futures_of_model ON futures(model_id, seq_id) WHERE model_id IS NOT NULL;
    CREATE UNIQUE INDEX futures_of_sampler ON futures(sampler_id, seq_id)
        WHERE sampler_id IS NOT NULL;
    CREATE INDEX futures_finished ON futures(finished_at) WHERE finished_at IS NOT NULL;
    CREATE INDEX futures_pending ON futures(state) WHERE state = 'pending';
    CREATE TABLE checkpoints (
        path TEXT PRIMARY KEY,
        model_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        base_model TEXT NOT NULL,
        spec TEXT NOT NULL,
        user_metadata TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        created_at REAL NOT NULL,
        expires_at REAL
    );
    CREATE INDEX checkpoints_of_model ON checkpoints(model_id, created_at);
    """,
    """
    ALTER TABLE sessions ADD COLUMN owner TEXT NOT NULL DEFAULT 'local';
    ALTER TABLE sessions ADD COLUMN detail TEXT;
    ALTER TABLE sessions ADD COLUMN finished_at REAL;
    CREATE INDEX sessions_of_owner ON sessions(owner, created_at);
    ALTER TABLE models ADD COLUMN last_request_at REAL;
    ALTER TABLE models ADD COLUMN kept_seq INTEGER NOT NULL DEFAULT -1;
    ALTER TABLE models ADD COLUMN dropped TEXT;
    ALTER TABLE checkpoints ADD COLUMN seq_id INTEGER;
    ALTER TABLE checkpoints ADD COLUMN public INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX checkpoints_by_time ON checkpoints(created_at);
    CREATE INDEX checkpoints_expiring ON checkpoints(expires_at) WHERE expires_at IS NOT NULL;
    CREATE TABLE keys (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        owner TEXT NOT NULL,
        hash TEXT NOT NULL UNIQUE,
        created_at REAL NOT NULL,
        last_used_at REAL,
        revoked_at REAL
    );
    CREATE TABLE audit (
        id INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        owner TEXT NOT NULL,
        event TEXT NOT NULL,
        subject TEXT NOT NULL
    );
    CREATE INDEX audit_of_owner ON audit(owner, at);
    """,
)


def migrate(connection: sqlite3.Connection) -> None:
    """Brings the file up to date; each migration is whole or not at all."""
    (seen,) = connection.execute("PRAGMA user_version").fetchone()
    for number, script in enumerate(MIGRATIONS[seen:], start=seen + 1):
        connection.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")
