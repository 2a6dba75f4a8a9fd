"""How much better than its group each rollout did: one function an estimator, one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinsmith.errors import RunError
from tinsmith.rl.types import TrajectoryGroup

Floats: TypeAlias = NDArray[np.float64]
Estimator: TypeAlias = Callable[[Floats], Floats]  # rewards_G -> advantages_G

TINY = 1e-6  # keeps a quotient finite where its divisor may vanish


def centred(rewards_G: Floats) -> Floats:
    """Reward minus the group's mean."""
    return rewards_G - rewards_G.mean()


def grpo(rewards_G: Floats) -> Floats:
    """Reward minus the group's mean, in units of its standard deviation (arXiv 2402.03300)."""
    return centred(rewards_G) / (rewards_G.std() + TINY)


def rloo(rewards_G: Floats) -> Floats:
    """Reward minus the mean of the other rollouts, which makes the baseline unbiased (arXiv 2402.14740)."""
    count = len(rewards_G)
    return centred(rewards_G) * (count / (count - 1)) if count > 1 else np.zeros(count)


def entropic(beta: float) -> Estimator:
    """Gradient of log E[exp(beta * reward)]: the larger beta, the more only the best rollouts count.

    Each rollout's weight exp(beta * reward) is divided by the mean of the others', then 1, the mean of
    such weights, is taken off.
    """

    def advantages(rewards_G: Floats) -> Floats:
        count = len(rewards_G)
        if count < 2:
            return np.zeros(count)
        weights = np.exp(beta * (rewards_G - rewards_G.max()))
        others = (weights.sum() - weights) / (count - 1)
        return weights / (others + 1e-12) - 1.0

    return advantages


def maxrl(rewards_G: Floats) -> Floats:
    """Reward minus the group's mean, divided by that mean: the gradient of log success (arXiv 2602.02710).

    Rare successes on hard problems count most. Rewards must not be negative.
    """
    if rewards_G.min() < 0:
        raise RunError(
            f"adv_estimator=maxrl needs rewards of at least 0, and one was {rewards_G.min():g}. "
            "Choose another adv_estimator for this environment."
        )
    mean = rewards_G.mean()
    return centred(rewards_G) / mean if mean > 0 else np.zeros(len(rewards_G))


ESTIMATORS: dict[str, Callable[[float], Estimator]] = {  # name -> adv_beta -> estimator
    "default": lambda _: centred,
    "grpo": lambda _: grpo,
    "rloo": lambda _: rloo,
    "entropic": entropic,
    "maxrl": lambda _: maxrl,
}


def is_mixed(rewards_G: Sequence[float | None]) -> bool:
    """Whether rollouts that ended differ in reward; otherwise there is nothing to learn."""
    return len({reward for reward in rewards_G if reward is not None}) > 1


def advantages_of(
    group: TrajectoryGroup, estimator: Estimator, *, keep_alike: bool = False
) -> list[float | None]:
    """An advantage for each rollout; None where it is not trained on (failed, or nothing to compare).

    `keep_alike` gives the rollouts of a group without signal the advantage 0 instead.
    """
    rewards_G = group.rewards_G()
    ended = [g for g, reward in enumerate(rewards_G) if reward is not None]
    advantages_G: list[float | None] = [None] * len(rewards_G)
    if is_mixed(rewards_G):
        values = estimator(np.array([rewards_G[g] for g in ended], dtype=np.float64))
    elif keep_alike:
        values = np.zeros(len(ended))
    else:
        return advantages_G
    for g, value in zip(ended, values, strict=True):
        advantages_G[g] = float(value)
    return advantages_G
