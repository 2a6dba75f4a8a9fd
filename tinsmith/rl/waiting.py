"""Awaiting with a way out and with a stopwatch."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


async def unless(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of `work`, or None when `stop` is set first; the work is then cancelled."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


async def in_thread(call: Callable[[], T]) -> T:
    """The result of a blocking call. Cancelled, it is left behind in its thread.

    Not `asyncio.to_thread`: the end of the event loop would wait for a call that may never return.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # the call's own result

    def work() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = call()
        except Exception as raised:  # noqa: BLE001  raised again where it is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    return await future


class Busy:
    """Adds up the time in which at least one piece of some work was in progress."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._working = 0
        self._since = 0.0
        self._seconds = 0.0

    def begin(self) -> None:
        if self._working == 0:
            self._since = self._clock()
        self._working += 1

    def end(self) -> None:
        self._working -= 1
        if self._working == 0:
            self._seconds += self._clock() - self._since

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()

    def take(self) -> float:
        """The busy seconds since the last time this was asked."""
        now = self._clock()
        if self._working:
            self._seconds += now - self._since
            self._since = now
        taken, self._seconds = self._seconds, 0.0
        return taken


async def timed(name: str, work: Awaitable[T], values: dict[str, float]) -> T:
    """Await `work` and put down how long it took."""
    began = time.monotonic()
    result = await work
    values[name] = max(time.monotonic() - began, 1e-9)
    return result
