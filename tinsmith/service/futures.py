"""Futures in memory: who waits for what, and what finished when; of the event loop alone."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakSet

from tinsmith.service.ops import Op, Outcome

KEPT_BYTES = 256 * 1024 * 1024
KEPT_FUTURES = 50_000
# The SDK fetches all that it is told of at once; after too many, its own heartbeats come late.
COMPLETIONS_AT_ONCE = 64


class LogKey(NamedTuple):
    """One client of a sampler."""

    sampler: str
    clone: int


@dataclass
class Entry:
    """A future: acknowledged once journalled, done once it has an outcome."""

    op: Op
    log: LogKey | None
    acknowledged: asyncio.Future[bool]
    outcome: Outcome | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Completion(NamedTuple):
    cursor: int
    future_id: str
    failed: bool
    size: int


@dataclass(eq=False)
class _Log:
    completions: list[Completion] = field(default_factory=list[Completion])
    news: asyncio.Event = field(default_factory=asyncio.Event)


class FutureTable:
    """Finished futures are kept up to a bound, oldest out first; the store has them too."""

    def __init__(self, kept_bytes: int = KEPT_BYTES, kept_futures: int = KEPT_FUTURES) -> None:
        self._entries: dict[str, Entry] = {}
        self._finished: OrderedDict[str, int] = OrderedDict()  # future -> bytes
        self._bytes = 0
        self._kept_bytes = kept_bytes
        self._kept_futures = kept_futures
        self._logs: dict[LogKey, _Log] = {}
        self._ended: WeakSet[_Log] = (
            WeakSet()
        )  # of sessions that are over; gone with their last poll
        # Clients keep their cursors when the service restarts, so later numbers must be larger.
        self._cursors = itertools.count(time.time_ns() // 1000)
        self._closing = False

    def get(self, future_id: str) -> Entry | None:
        return self._entries.get(future_id)

    def add(self, op: Op, log: LogKey | None) -> Entry:
        entry = Entry(op, log, asyncio.get_running_loop().create_future())
        self._entries[op.future_id] = entry
        return entry

    def remove(self, future_ids: Iterable[str]) -> None:
        for future_id in future_ids:
            self._entries.pop(future_id, None)
            self._bytes -= self._finished.pop(future_id, 0)

    def resolve(self, pairs: Iterable[tuple[Op, Outcome]]) -> None:
        for op, outcome in pairs:
            entry = self._entries.get(op.future_id)
            if entry is None or entry.outcome is not None:
                continue
            entry.outcome = outcome
            entry.done.set()
            self._finished[op.future_id] = len(outcome.payload)
            self._bytes += len(outcome.payload)
            if entry.log is not None:
                self.complete(entry.log, op.future_id, outcome)
        while len(self._finished) > 1 and (
            self._bytes > self._kept_bytes or len(self._finished) > self._kept_futures
        ):
            self.remove([next(iter(self._finished))])

    async def wait(self, entry: Entry, seconds: float) -> Outcome | None:
        """The outcome, as soon as there is one; None when the time is over or the service closes."""
        if entry.outcome is None and not self._closing:
            try:
                async with asyncio.timeout(seconds):
                    await entry.done.wait()
            except TimeoutError:
                return None
        return entry.outcome

    # completion logs, one per client of a sampler

    def open_log(self, key: LogKey) -> bool:
        """Whether the log is new."""
        new = key not in self._logs
        self._logs.setdefault(key, _Log())
        return new

    def complete(self, key: LogKey, future_id: str, outcome: Outcome) -> None:
        log = self._logs.setdefault(key, _Log())
        log.completions.append(
            Completion(
                next(self._cursors), future_id, outcome.error is not None, len(outcome.payload)
            )
        )
        log.news.set()

    async def completions(
        self, key: LogKey, cursor: int, seconds: float
    ) -> tuple[list[Completion], int]:
        """What finished after `cursor`, the oldest first and not all at once, as soon as there is
        something; and the cursor for next time."""
        log = self._logs.setdefault(key, _Log())
        log.completions = [one for one in log.completions if one.cursor > cursor]
        if not log.completions and not self._closing:
            log.news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await log.news.wait()
            except TimeoutError:
                pass
        found = log.completions[:COMPLETIONS_AT_ONCE]
        return found, found[-1].cursor if found else cursor

    def close_logs(self, samplers: set[str]) -> None:
        """Forgets what these finished. Open polls are left to run out: a client that closes cancels them,
        and the SDK never ends one that is answered in the moment of its cancellation."""
        for key in [key for key in self._logs if key.sampler in samplers]:
            self._ended.add(self._logs.pop(key))

    def close(self) -> None:
        """Lets every waiter go."""
        self._closing = True
        for entry in self._entries.values():
            entry.done.set()
        for log in (*self._logs.values(), *self._ended):
            log.news.set()
