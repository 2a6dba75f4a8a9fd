"""Estimators on numbers worked out by hand."""

from __future__ import annotations

import typing

import chz
import numpy as np
import pytest

from tinsmith.rl.advantages import ESTIMATORS, is_mixed
from tinsmith.rl.config import TrainConfig


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default", [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ("grpo", [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)]),
    ],
)
def test_one_right_of_four(name, expected):
    found = ESTIMATORS[name](np.array([1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


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
