"""pass@k against enumeration and exact fractions; intervals against their definitions and by simulation."""

from __future__ import annotations

import itertools
import math
import statistics
from fractions import Fraction

import numpy as np
import pytest

from tinsmith.rl.pass_at_k import Tries, mean_reward, pass_at_k, pass_rate, wilson

Z = 1.959963984540054


def exact(n: int, c: int, k: int) -> Fraction:
    return 1 - Fraction(math.comb(n - c, k), math.comb(n, k))


@pytest.mark.parametrize("n", range(1, 7))
def test_it_is_the_share_of_draws_that_hold_a_pass(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        draws = list(itertools.combinations([i < c for i in range(n)], k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-15)


@pytest.mark.parametrize("n", [1, 2, 7, 16, 64])
def test_it_equals_the_binomials(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        assert pass_at_k(n, c, k) == pytest.approx(float(exact(n, c, k)), rel=1e-14, abs=0)


@pytest.mark.parametrize(
    ("n", "c", "k"), [(10**6, 1, 2), (10**6, 3, 1000), (10**5, 10**4, 5), (5000, 2500, 2000)]
)
def test_large_counts_stay_exact(n, c, k):
    assert pass_at_k(n, c, k) == pytest.approx(float(exact(n, c, k)), rel=1e-13)


@pytest.mark.parametrize(("n", "k"), [(4, 5), (4, 0), (0, 1)])
def test_more_draws_than_rollouts_have_no_answer(n, k):
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, 0, k)


def test_more_passes_than_rollouts_are_a_mistake():
    with pytest.raises(ValueError, match="cannot have passed"):
        Tries(3, 4)


@pytest.mark.parametrize(("share", "trials"), [(0.5, 10), (0.93, 200), (1 / 3, 3), (0.01, 100.5)])
def test_wilsons_bounds_are_where_the_share_is_just_believable(share, trials):
    """By definition: a bound b is as far from the share as z standard errors under b."""
    for bound in wilson(share, trials):
        assert abs(share - bound) == pytest.approx(Z * math.sqrt(bound * (1 - bound) / trials))


@pytest.mark.parametrize(("share", "end"), [(0.0, 0), (1.0, 1)])
def test_an_end_is_reached_and_the_other_bound_is_not_certain(share, end):
    bounds = wilson(share, 20)
    assert bounds[end] == share
    assert abs(bounds[1 - end] - share) == pytest.approx(Z**2 / (20 + Z**2))


def test_one_rollout_a_problem_is_wilsons_own_interval():
    estimate = pass_rate([Tries(1, 1)] * 7 + [Tries(1, 0)] * 3, 1)
    assert estimate is not None
    assert (estimate.value, estimate.problems) == (pytest.approx(0.7), 10)
    assert (estimate.low, estimate.high) == pytest.approx(wilson(0.7, 10))


def test_pass_at_k_from_k_rollouts_is_wilsons_interval_over_problems():
    estimate = pass_rate([Tries(4, 1), Tries(4, 4), Tries(4, 0)], 4)
    assert estimate is not None
    assert estimate.value == pytest.approx(2 / 3)
    assert (estimate.low, estimate.high) == pytest.approx(wilson(2 / 3, 3))


def test_rollouts_that_agree_within_a_problem_add_nothing():
    """Eight copies of a rollout are one rollout."""
    once = pass_rate([Tries(1, 1)] * 60 + [Tries(1, 0)] * 40, 1)
    often = pass_rate([Tries(8, 8)] * 60 + [Tries(8, 0)] * 40, 1)
    assert once is not None
    assert often is not None
    assert (often.low, often.high) == pytest.approx((once.low, once.high), abs=0.002)


def test_problems_alike_count_their_rollouts():
    """Where every problem passes half the time, 800 rollouts are 800 trials, but for the smoothing."""
    estimate = pass_rate([Tries(8, 4)] * 100, 1)
    assert estimate is not None
    low, high = wilson(0.5, 800)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=1e-9)


def test_one_failure_more_never_narrows_what_is_left_open():
    """All right is not more uncertain than almost all right."""
    every = pass_rate([Tries(8, 8)] * 20, 1)
    almost = pass_rate([*[Tries(8, 8)] * 19, Tries(8, 7)], 1)
    assert every is not None
    assert almost is not None
    assert almost.low < every.low < 1
    assert every.high == 1


def test_too_few_rollouts_leave_a_problem_out():
    tries = [Tries(4, 4), Tries(3, 0), Tries(0, 0)]
    estimate = pass_rate(tries, 4)
    assert estimate is not None
    assert (estimate.value, estimate.problems) == (1.0, 1)
    assert pass_rate(tries, 5) is None


@pytest.mark.parametrize(
    ("problems", "a", "b"), [(10, 1.0, 1.0), (30, 0.5, 0.05), (50, 30.0, 1.0), (100, 0.2, 0.8)]
)
def test_the_interval_holds_the_truth_as_often_as_it_says(problems, a, b):
    generator = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        passed_P = generator.binomial(8, generator.beta(a, b, problems))
        estimate = pass_rate([Tries(8, int(c)) for c in passed_P], 1)
        assert estimate is not None
        held += estimate.low <= a / (a + b) <= estimate.high
    assert held / 400 >= 0.93  # three standard errors below 0.95 would be 0.917


def test_with_many_problems_it_is_what_a_bootstrap_over_problems_says():
    generator = np.random.default_rng(7)
    passed_P = generator.binomial(8, generator.beta(1, 1, 400))
    estimate = pass_rate([Tries(8, int(c)) for c in passed_P], 1)
    assert estimate is not None
    again = (passed_P / 8)[generator.integers(0, 400, (4000, 400))].mean(axis=1)
    assert (estimate.low, estimate.high) == pytest.approx(
        tuple(np.quantile(again, [0.025, 0.975])), abs=0.004
    )


def test_the_mean_reward_has_the_normal_interval_over_problems():
    means = [0.1, 2.5, -1.0, 0.3, 0.3]
    estimate, stderr = mean_reward(means)
    assert stderr == pytest.approx(statistics.stdev(means) / math.sqrt(5))
    assert estimate.value == pytest.approx(statistics.mean(means))
    assert estimate.high - estimate.value == pytest.approx(Z * stderr)
    assert estimate.value - estimate.low == pytest.approx(Z * stderr)


def test_one_problem_says_nothing_of_the_others():
    estimate, stderr = mean_reward([0.4])
    assert stderr is None
    assert (estimate.low, estimate.high) == (-math.inf, math.inf)
