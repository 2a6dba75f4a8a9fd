"""What passes between a policy and the world: tokens shown, tokens said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Observation:
    """All that the policy is shown before it speaks, and where its speech ends."""

    tokens_T: list[int]
    stop: tuple[str | int, ...] = ()  # beside the model's own end of text


@dataclass(frozen=True)
class Action:
    """What the policy said; the token that ended it is the last one."""

    tokens_T: list[int]
    logprobs_T: list[float]  # of the distribution it was sampled from
    stop_reason: Literal["stop", "length"]
    version: int = 0  # updates done before the weights that said it
