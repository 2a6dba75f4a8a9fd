"""pass@k without bias, and how sure one may be of it and of a mean reward.

The problems are the sample: they were drawn independently of each other, and the rollouts of one
problem were not. So every interval here is over problems, and more rollouts of the same problems
narrow it only as far as they steady the problems' own values.

- A mean reward may be any number. Its interval is the normal one over the problems' means.
- A pass rate lies between 0 and 1, often close to an end, where the normal interval leaves that range
  and, like a bootstrap over problems, shrinks to nothing once all problems come out alike: 20 of 20
  does not prove certainty. Wilson's interval does neither. It wants a number of independent trials;
  as such count as many as would give the spread that the problems' values show (the design effect of
  cluster samples), never fewer than there are problems and never more than there are separate draws.
  With one rollout a problem, and for pass@k from k rollouts, this is Wilson's own interval over
  problems. It needs no random numbers: the same rollouts give the same bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Tries:
    """The rollouts of one problem that ended, and how many of them passed."""

    rollouts: int
    passed: int

    def __post_init__(self) -> None:
        if not 0 <= self.passed <= self.rollouts:
            raise ValueError(f"{self.passed} of {self.rollouts} rollouts cannot have passed")


@dataclass(frozen=True)
class Estimate:
    """A value and the interval that holds the true one in `CONFIDENCE` of all evaluations."""

    value: float
    low: float
    high: float
    problems: int  # that it rests on


def pass_at_k(rollouts: int, passed: int, k: int) -> float:
    """The chance that k rollouts, drawn without putting back, hold one that passed: 1 - C(n-c,k)/C(n,k)."""
    if not 1 <= k <= rollouts:
        raise ValueError(f"pass@{k} needs 1 <= k <= {rollouts} rollouts")
    if k == 1:
        return passed / rollouts
    if rollouts - passed < k:
        return 1.0
    # C(n-c,k)/C(n,k) is a product of c or of k factors; logarithms keep a tiny chance exact.
    few, many = sorted((passed, k))
    logs = math.fsum(math.log1p(-many / (rollouts - i)) for i in range(few))
    return -math.expm1(logs) if few else 0.0


def pass_rate(tries_P: Sequence[Tries], k: int) -> Estimate | None:
    """pass@k over the problems with at least k rollouts; None when there is no such problem."""
    usable = [tries for tries in tries_P if tries.rollouts >= k]
    if not usable:
        return None
    values_P = [pass_at_k(tries.rollouts, tries.passed, k) for tries in usable]
    draws = sum(tries.rollouts // k for tries in usable)
    value = math.fsum(values_P) / len(values_P)
    low, high = wilson(value, _independent_trials(values_P, draws))
    return Estimate(value, low, high, len(usable))


def mean_reward(means_P: Sequence[float]) -> tuple[Estimate, float | None]:
    """The mean of the problems' means with its normal interval, and its standard error.

    One problem has no spread: then there is no standard error, and the bounds are infinite.
    """
    count = len(means_P)
    value = math.fsum(means_P) / count
    if count == 1:
        return Estimate(value, -math.inf, math.inf, count), None
    stderr = math.sqrt(_variance(means_P, value) / count)
    reach = _quantile() * stderr
    return Estimate(value, value - reach, value + reach, count), stderr


def wilson(share: float, trials: float) -> tuple[float, float]:
    """Wilson's interval for a share that was seen in so many independent trials."""
    z2 = _quantile() ** 2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    reach = math.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials**2))) / (
        1 + z2 / trials
    )
    # Rounding must not put an end of the range out of reach.
    low = 0.0 if share == 0 else max(middle - reach, 0.0)
    high = 1.0 if share == 1 else min(middle + reach, 1.0)
    return low, high


def _independent_trials(values_P: Sequence[float], draws: int) -> float:
    """How many independent draws would leave the mean as uncertain as the problems' values say it is.

    Two problems more, one that always passes and one that never does, keep the spread from being
    judged by the one or two problems that differ where nearly all come out alike.
    """
    smoothed = [*values_P, 0.0, 1.0]
    mean = math.fsum(smoothed) / len(smoothed)
    draws_per_problem = mean * (1 - mean) / _variance(smoothed, mean)
    return min(max(len(values_P) * draws_per_problem, float(len(values_P))), float(draws))


def _variance(values: Sequence[float], mean: float) -> float:
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _quantile() -> float:
    return NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
