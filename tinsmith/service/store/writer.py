"""The one thread that writes to the database; what is queued together is committed together."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from tinsmith.errors import StorageError
from tinsmith.service import metrics

T = TypeVar("T")
_Job: TypeAlias = tuple[Callable[[sqlite3.Connection], Any], Future[Any]]

GROUP = 512  # most jobs in one transaction


class Writer:
    """Runs jobs in order; a job's future resolves after its transaction was committed."""

    def __init__(self, connection: sqlite3.Connection, where: str) -> None:
        self._connection = connection
        self._where = where
        self.trouble: str | None = None  # why the last transaction failed, until one succeeds
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tinsmith-store", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[sqlite3.Connection], T]) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return future

    def close(self) -> None:
        """Commits everything queued so far, then ends the thread."""
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while (first := self._jobs.get()) is not None:
            group = [first]
            last = False
            while len(group) < GROUP and not self._jobs.empty():
                job = self._jobs.get()
                if job is None:
                    last = True
                    break
                group.append(job)
            self._commit(group)
            if last:
                return

    def _commit(self, group: list[_Job]) -> None:
        try:
            results = self._transaction(group)
        except sqlite3.Error as error:
            if len(group) > 1:  # one bad job must not take its neighbours along
                for job in group:
                    self._commit([job])
                return
            sentence = self._sentence(error)
            self.trouble = str(sentence)
            metrics.count("tinsmith_store_failures_total")
            group[0][1].set_exception(sentence)
            return
        self.trouble = None
        for (_, future), result in zip(group, results, strict=True):
            future.set_result(result)

    def _transaction(self, group: list[_Job]) -> list[Any]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            results = [job(connection) for job, _ in group]
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return results

    def _sentence(self, error: sqlite3.Error) -> StorageError:
        return storage_error(error, self._where)


def storage_error(error: sqlite3.Error, where: str) -> StorageError:
    """What SQLite said, with where it happened and what to do."""
    return StorageError(
        f"the service's database {where} cannot be used: {error}; "
        "check that its disk has space, that it can be written and that no other service uses it."
    )
