"""How much better than its group each rollout did: one function an estimator, one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinsmith.rl.types import TrajectoryGroup

Floats: TypeAlias = NDArray[np.float64]
Estimator: TypeAlias = Callable[[Floats], Floats]  # rewards_G -> advantages_G


def centred(rewards_G: Floats) -> Floats:
    """Reward minus the group's mean."""
    return rewards_G - rewards_G.mean()


def grpo(rewards_G: Floats) -> Floats:
    """Reward minus the group's mean, in units of its standard deviation."""
    return centred(rewards_G) / (rewards_G.std() + 1e-6)


def rloo(rewards_G: Floats) -> Floats:
    """Reward minus the mean of the other rollouts, which makes the baseline unbiased."""
    count = len(rewards_G)
    return centred(rewards_G) * (count / (count - 1)) if count > 1 else np.zeros(count)


ESTIMATORS: dict[str, Estimator] = {"default": centred, "grpo": grpo, "rloo": rloo}


def is_mixed(rewards_G: Sequence[float | None]) -> bool:
    """Whether rollouts that ended differ in reward; otherwise there is nothing to learn."""
    return len({reward for reward in rewards_G if reward is not None}) > 1


def advantages_of(group: TrajectoryGroup, estimator: Estimator) -> list[float | None]:
    """An advantage for each rollout; None where it is not trained on (failed, or nothing to compare)."""
    rewards_G = group.rewards_G()
    if not is_mixed(rewards_G):
        return [None] * len(rewards_G)
    ended = [g for g, reward in enumerate(rewards_G) if reward is not None]
    values = estimator(np.array([rewards_G[g] for g in ended], dtype=np.float64))
    advantages_G: list[float | None] = [None] * len(rewards_G)
    for g, value in zip(ended, values, strict=True):
        advantages_G[g] = float(value)
    return advantages_G
