"""The learning rate of each step: one function a schedule, one table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

# share of the way from the end of the warm-up (0) to the end of the run (1) -> share of the peak
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda way: 1.0 - way,
    "cosine": lambda way: 0.5 * (1.0 + math.cos(math.pi * way)),
}


class Schedule(Protocol):
    @property
    def schedule(self) -> str: ...
    @property
    def warmup_steps(self) -> int: ...


def learning_rate(peak: float, optim: Schedule, step: int, total: int) -> float:
    """Of step 1 to `total`: rises to `peak` over the warm-up, then falls towards 0 as the schedule says."""
    if step <= optim.warmup_steps:
        return peak * step / optim.warmup_steps
    way = (step - 1 - optim.warmup_steps) / max(total - optim.warmup_steps, 1)
    return peak * SCHEDULES[optim.schedule](min(way, 1.0))
