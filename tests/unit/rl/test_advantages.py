"""Estimators on numbers worked out by hand."""

from __future__ import annotations

import math
import typing

import chz
import numpy as np
import pytest

from tinsmith.errors import RunError
from tinsmith.rl.advantages import ESTIMATORS, is_mixed
from tinsmith.rl.config import TrainConfig

e2 = math.exp(2.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default", [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ("grpo", [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)]),
        ("maxrl", [3.0, -1.0, -1.0, -1.0]),
        # weights e^2, 1, 1, 1; the others' means 1 and (e^2 + 2) / 3
        ("entropic", [e2 - 1, *[3 / (e2 + 2) - 1] * 3]),
    ],
)
def test_one_right_of_four(name, expected):
    found = ESTIMATORS[name](2.0)(np.array([1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["default", "rloo", "grpo", "maxrl"])
def test_advantages_of_a_group_add_up_to_nothing(name):
    found = ESTIMATORS[name](2.0)(np.array([0.2, 0.9, 0.4, 0.0, 1.0]))
    assert abs(found.sum()) < 1e-9


def test_entropic_is_the_gradient_of_the_log_mean_exponential():
    """Of many rollouts the leave-one-out form tends to the derivative of log E[exp(beta r)] by log-odds."""
    generator = np.random.default_rng(0)
    rewards = generator.choice([0.0, 0.3, 1.0], size=20000, p=[0.5, 0.3, 0.2])
    beta = 1.5
    weights = np.exp(beta * rewards)
    expected = weights / weights.mean() - 1
    np.testing.assert_allclose(ESTIMATORS["entropic"](beta)(rewards), expected, atol=1e-3)


def test_entropic_shifts_do_not_matter_and_large_values_do_not_overflow():
    estimate = ESTIMATORS["entropic"](2.0)
    rewards = np.array([3.0, 1.0, 0.5])
    np.testing.assert_allclose(estimate(rewards), estimate(rewards + 1000.0), rtol=1e-9)
    assert np.isfinite(ESTIMATORS["entropic"](500.0)(np.array([1.0, 0.0]))).all()
    assert estimate(np.array([5.0])).tolist() == [0.0]


def test_maxrl_wants_rewards_that_are_not_negative():
    assert ESTIMATORS["maxrl"](0.0)(np.array([0.0, 0.0])).tolist() == [0.0, 0.0]
    with pytest.raises(RunError, match="maxrl needs rewards of at least 0, and one was -1"):
        ESTIMATORS["maxrl"](0.0)(np.array([1.0, -1.0]))


def test_the_configuration_offers_exactly_these():
    offered = typing.get_args(chz.chz_fields(TrainConfig)["adv_estimator"].final_type)
    assert set(offered) == set(ESTIMATORS)


@pytest.mark.parametrize(
    ("rewards", "mixed"),
    [
        ([1.0, 0.0], True),
        ([1.0, 1.0], False),
        ([1.0, None], False),
        ([None, None], False),
        ([], False),
    ],
)
def test_a_group_is_mixed_when_rollouts_that_ended_differ(rewards, mixed):
    assert is_mixed(rewards) is mixed
