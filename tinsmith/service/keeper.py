"""The thread that puts models and samplers' copies on disk, in the order in which they were taken."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from tinsmith.errors import StorageError
from tinsmith.service import metrics
from tinsmith.service.engine.backend import ModelId, WeightsId, Write
from tinsmith.service.store.snapshots import SnapshotShelf
from tinsmith.service.store.store import Store

log = logging.getLogger(__name__)


class Keeper:
    """What is queued is copied already, so the worker goes on while it is written.

    A state on disk lets the requests before it go, so it is written only once the answers up to it are
    stored, and lets go of none while a copy taken before it could not be written.
    """

    def __init__(self, shelf: SnapshotShelf, store: Store, copies_bytes: int) -> None:
        self.shelf = shelf
        self._store = store
        self._copies_bytes = copies_bytes
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards what follows
        self._trouble: str | None = None
        self._queued: dict[ModelId, int] = {}
        self._kept: dict[ModelId, int] = {}
        self._seconds: dict[ModelId, float] = {}
        self._copies = OrderedDict(shelf.copy_sizes())  # least recently used first
        # Of the thread alone: copies that could not be written, to be tried again.
        self._unwritten: dict[ModelId, dict[WeightsId, Write]] = {}
        self._thread = threading.Thread(target=self._run, name="tinsmith-keeper", daemon=True)
        self._thread.start()

    # any thread

    @property
    def trouble(self) -> str | None:
        """Why the last write failed, until one succeeds."""
        with self._lock:
            return self._trouble

    def kept(self, model: ModelId) -> int:
        """The last op of the model that is on disk as weights."""
        with self._lock:
            return self._kept.get(model, -1)

    def resume(self, model: ModelId, seq_id: int) -> None:
        with self._lock:
            self._kept[model] = seq_id

    def is_due(self, model: ModelId, work_seconds: float) -> bool:
        """Whether a state is worth its writing: ten times as much work would be lost without it."""
        with self._lock:
            queued = self._queued.get(model, 0)
            return queued == 0 and work_seconds >= 10 * self._seconds.get(model, 0.0)

    def has_copy(self, sampler: WeightsId) -> bool:
        """Whether the copy is on disk; asking counts as use."""
        with self._lock:
            if sampler in self._copies:
                self._copies.move_to_end(sampler)
            return sampler in self._copies

    def keep(self, model: ModelId, seq_id: int, write: Write, stored: Future[None] | None) -> None:
        with self._lock:
            self._queued[model] = self._queued.get(model, 0) + 1
        self._jobs.put(lambda: self._keep(model, seq_id, write, stored))

    def keep_copy(self, model: ModelId, sampler: WeightsId, write: Write) -> None:
        self._jobs.put(lambda: self._keep_copies(model, {sampler: write}))

    def drop(self, model: ModelId, samplers: Iterable[WeightsId]) -> None:
        gone = list(samplers)
        self._jobs.put(lambda: self._drop(model, gone))

    def flush(self) -> None:
        """Waits until all that was queued so far was written, or could not be."""
        reached = threading.Event()
        self._jobs.put(reached.set)
        reached.wait()

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    # the thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _attempt(self, what: str, job: Callable[[], None]) -> bool:
        try:
            job()
        except StorageError as error:
            log.error("%s was not put on disk: %s", what, error)
            metrics.count("tinsmith_snapshots_total", outcome="failed")
            with self._lock:
                self._trouble = str(error)
            return False
        metrics.count("tinsmith_snapshots_total", outcome="written")
        with self._lock:
            self._trouble = None
        return True

    def _keep(self, model: ModelId, seq_id: int, write: Write, stored: Future[None] | None) -> None:
        def job() -> None:
            if stored is not None:
                stored.result()
            started = time.perf_counter()
            floor = self.shelf.write_state(model, seq_id, write)
            with self._lock:
                self._seconds[model] = time.perf_counter() - started
                self._kept[model] = seq_id
            if not self._unwritten.get(model):
                self._store.keep_model(model, floor).result()

        self._keep_copies(model, {})
        done = self._attempt(f"the state of {model}", job)
        with self._lock:
            self._queued[model] -= 1
            if not done:  # not at every step, while the disk refuses
                self._seconds[model] = max(self._seconds.get(model, 0.0), 1.0)

    def _keep_copies(self, model: ModelId, new: dict[WeightsId, Write]) -> None:
        copies = {**self._unwritten.pop(model, {}), **new}
        for sampler, write in copies.items():
            if self._attempt(f"the copy {sampler}", lambda: self._keep_copy(sampler, write)):  # noqa: B023 - called at once
                continue
            self._unwritten.setdefault(model, {})[sampler] = write

    def _keep_copy(self, sampler: WeightsId, write: Write) -> None:
        self.shelf.write_copy(sampler, write)
        size = sum(file.stat().st_size for file in self.shelf.copy(sampler).iterdir())
        with self._lock:
            self._copies[sampler] = size
            self._copies.move_to_end(sampler)
            total, dropped = sum(self._copies.values()), []
            while total > self._copies_bytes and len(self._copies) > 1:
                old, freed = self._copies.popitem(last=False)
                total -= freed
                dropped.append(old)
        for old in dropped:
            self.shelf.drop_copy(old)

    def _drop(self, model: ModelId, samplers: list[WeightsId]) -> None:
        self._unwritten.pop(model, None)
        with self._lock:
            for sampler in samplers:
                self._copies.pop(sampler, None)
            for table in (self._kept, self._seconds, self._queued):
                table.pop(model, None)
        self.shelf.drop_model(model)
        for sampler in samplers:
            self.shelf.drop_copy(sampler)
