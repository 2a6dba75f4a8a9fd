"""Who changed what, and when."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from tinsmith.service.store.store import Store


@dataclass(frozen=True)
class AuditRow:
    """`event` is <resource>_<action>; `subject` is what it was done to."""

    at: float
    owner: str
    event: str
    subject: str


class Audit:
    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def add(self, owner: str, event: str, subject: str) -> Future[None]:
        return self._store.write(
            "INSERT INTO audit (at, owner, event, subject) VALUES (?, ?, ?, ?)",
            (self._clock(), owner, event, subject),
        )

    def between(
        self, owner: str, start: float, end: float, resource: str | None = None
    ) -> list[AuditRow]:
        """An owner's events in [start, end), oldest first; of one resource or of all."""
        rows = self._store.rows(
            "SELECT at, owner, event, subject FROM audit WHERE owner = ? AND at >= ? AND at < ?"
            " AND substr(event, 1, ?) = ? ORDER BY at, id",
            (owner, start, end, len(resource or ""), resource or ""),
        )
        return [AuditRow(**dict(row)) for row in rows]
