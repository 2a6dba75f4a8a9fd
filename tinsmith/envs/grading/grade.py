"""What a grader says of a reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Grade:
    correct: bool
    well_formed: bool
    answer: str  # what was read from the reply; empty when nothing could be
    note: str = ""  # why it could not be decided, when it could not
    score: float | None = None  # where a part of it can be right: the reward, from 0 to 1


Grader: TypeAlias = Callable[[str, str], Awaitable[Grade]]  # reply, expected answer
