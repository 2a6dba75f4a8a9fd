"""Sessions, past and present: listed, searched, moved to a project, and their requests in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tinsmith.errors import RequestError
from tinsmith.service.store.rows import SessionRow
from tinsmith.service.store.store import Store, session_row

DEFAULT_PROJECT = "default"  # the name of where things are that nobody put anywhere
CLIENT_SAID = ("success", "errored", "interrupted")


@dataclass(frozen=True)
class SessionQuery:
    """What to search for; what is None or empty is not asked."""

    session_id: str | None = None  # with `words`, either may match
    words: tuple[str, ...] = ()  # each must be in the display name
    projects: tuple[str, ...] | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    open: bool | None = None  # None: `finished` and `open` are not asked
    finished: tuple[str, ...] = ()
    after: tuple[float, str] | None = None  # the last one of the page before


@dataclass(frozen=True)
class SessionSums:
    """A session with what was saved in it."""

    session: SessionRow
    checkpoints: int
    size_bytes: int


@dataclass(frozen=True)
class Event:
    """One request of a session."""

    id: str
    kind: str
    of: str  # the model or sampler
    seq_id: int
    created_at: float
    finished_at: float | None
    error: str | None


class SessionList:
    def __init__(self, store: Store) -> None:
        self._store = store

    def ids(self, owner: str, *, limit: int, offset: int) -> list[str]:
        """Newest first."""
        rows = self._store.rows(
            "SELECT id FROM sessions WHERE owner = ? ORDER BY created_at DESC, id LIMIT ? OFFSET ?",
            (owner, limit, offset),
        )
        return [row["id"] for row in rows]

    def get(self, session_id: str, owner: str) -> SessionRow:
        row = self._store.session(session_id)
        if row is None or row.owner != owner:
            raise RequestError(
                f"there is no session {session_id}; list them with list_sessions().", status=404
            )
        return row

    def members(self, session_id: str) -> tuple[list[str], list[str]]:
        """The ids of a session's models and of its samplers."""
        models = [model.id for model in self._store.models_of_session(session_id)]
        rows = self._store.rows(
            "SELECT id FROM samplers WHERE session_id = ? ORDER BY created_at, id", (session_id,)
        )
        return models, [row["id"] for row in rows]

    def set_project(self, session_id: str, owner: str, project: str) -> Future[None]:
        session = self.get(session_id, owner)
        return self._store.write(
            "UPDATE sessions SET project_id = ? WHERE id = ?", (project, session.id)
        )

    def search(self, owner: str, query: SessionQuery, limit: int) -> list[SessionSums]:
        """Newest first."""
        where, values = _conditions(query)
        rows = self._store.rows(
            f"SELECT * FROM sessions s WHERE s.owner = ?{where} ORDER BY created_at DESC, id LIMIT ?",
            (owner, *values, limit),
        )
        sessions = [session_row(row) for row in rows]
        sums = self._sums([session.id for session in sessions])
        return [SessionSums(session, *sums.get(session.id, (0, 0))) for session in sessions]

    def _sums(self, sessions: Sequence[str]) -> dict[str, tuple[int, int]]:
        rows = self._store.rows(
            "SELECT m.session_id, count(*), sum(c.size_bytes) FROM checkpoints c"
            " JOIN models m ON m.id = c.model_id"
            f" WHERE m.session_id IN ({', '.join('?' * len(sessions))}) GROUP BY m.session_id",
            tuple(sessions),
        )
        return {row[0]: (row[1], row[2]) for row in rows}

    def created_at(self, session_id: str) -> float | None:
        row = self._store.row("SELECT created_at FROM sessions WHERE id = ?", (session_id,))
        return None if row is None else row["created_at"]

    def events(self, session_id: str, limit: int) -> list[Event]:
        """A session's requests that are still known, newest first: results are kept for a while only."""
        rows = self._store.rows(
            'SELECT id, kind, coalesce(model_id, sampler_id) AS "of", seq_id, created_at,'
            " finished_at, error FROM futures WHERE"
            " model_id IN (SELECT id FROM models WHERE session_id = ?)"
            " OR sampler_id IN (SELECT id FROM samplers WHERE session_id = ?)"
            " ORDER BY created_at DESC LIMIT ?",
            (session_id, session_id, limit),
        )
        return [Event(**dict(row)) for row in rows]


def _conditions(query: SessionQuery) -> tuple[str, tuple[Any, ...]]:
    parts: list[str] = []
    values: list[Any] = []

    def ask(condition: str, *given: Any) -> None:
        parts.append(condition)
        values.extend(given)

    names = " AND ".join(
        ["instr(lower(coalesce(s.display_name, '')), lower(?)) > 0"] * len(query.words)
    )
    if query.session_id is not None and query.words:
        ask(f"(s.id = ? OR ({names}))", query.session_id, *query.words)
    elif query.session_id is not None:
        ask("s.id = ?", query.session_id)
    elif query.words:
        ask(names, *query.words)
    if query.projects is not None:
        marks = ", ".join("?" * len(query.projects))
        ask(f"coalesce(s.project_id, ?) IN ({marks})", DEFAULT_PROJECT, *query.projects)
    for name, value in query.user_metadata.items():
        ask(
            "EXISTS (SELECT 1 FROM json_each(s.user_metadata) j WHERE j.key = ? AND j.value = ?)",
            name,
            value,
        )
    if query.open is not None:
        marks = ", ".join("?" * len(query.finished))
        running = "s.finished IS NULL" if query.open else "0"
        ask(f"({running} OR s.finished IN ({marks}))", *query.finished)
    if query.after is not None:
        at, last = query.after
        ask("(s.created_at < ? OR (s.created_at = ? AND s.id > ?))", at, at, last)
    return "".join(f" AND {part}" for part in parts), tuple(values)
