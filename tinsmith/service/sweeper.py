"""Housekeeping: sessions nobody speaks for, old results, and a service nobody uses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

log = logging.getLogger(__name__)

STALE_SECONDS = 30 * 60.0  # the SDK speaks every 10 s, but a busy or sleeping laptop may not
RESULT_SECONDS = 2 * 3600.0  # how long results can be asked for again
SWEEP_SECONDS = 30.0


def stale_sessions(heard_at: Mapping[str, float], now: float) -> list[str]:
    """Sessions without a sign of life for so long that their memory is better used otherwise."""
    return [session for session, at in heard_at.items() if now - at > STALE_SECONDS]


def is_idle(last_request: float, busy: bool, now: float, limit: float) -> bool:
    """Whether a service with this limit (0: none) has been unused for long enough to stop."""
    return limit > 0 and not busy and now - last_request >= limit


def pause(idle_seconds: float) -> float:
    """Seconds between two sweeps: short enough to be on time."""
    return min(SWEEP_SECONDS, idle_seconds / 4) if idle_seconds > 0 else SWEEP_SECONDS


async def sweep_forever(sweep: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Sweeps every so often; one that fails is recorded, and the next is tried."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await sweep()
        except Exception:
            log.exception("housekeeping failed")
