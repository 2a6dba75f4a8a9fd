"""Awaiting with a way out: stop wins over work, threads may be left behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tinsmith.rl.waiting import in_thread, timed, unless


async def forever(log: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append("cancelled")


async def test_work_that_ends_first_gives_its_result():
    async def work() -> int:
        return 3

    assert await unless(asyncio.Event(), work()) == 3


async def test_stop_cancels_the_work():
    stop, log = asyncio.Event(), []
    asyncio.get_running_loop().call_soon(stop.set)
    assert await unless(stop, forever(log)) is None
    assert log == ["cancelled"]


async def test_a_stop_that_came_earlier_prevents_the_work():
    stop = asyncio.Event()
    stop.set()
    assert await unless(stop, forever([])) is None


async def test_an_error_of_the_work_is_raised():
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await unless(asyncio.Event(), work())


async def test_a_thread_gives_its_result_or_its_error():
    def broken() -> None:
        raise OSError("full")

    assert await in_thread(lambda: threading.current_thread().daemon) is True
    with pytest.raises(OSError, match="full"):
        await in_thread(broken)


def test_a_call_that_never_returns_does_not_hold_up_the_end():
    release = threading.Event()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_thread(release.wait), 0.01)

    asyncio.run(main())
    release.set()


async def test_a_stopwatch_writes_its_time_down():
    values: dict[str, float] = {}
    assert await timed("time/step", asyncio.sleep(0, "done"), values) == "done"
    assert values["time/step"] > 0
