"""Learning rates of each step, worked out by hand."""

from __future__ import annotations

import typing

import chz
import pytest

from tinsmith.rl.config import OptimConfig
from tinsmith.rl.schedule import SCHEDULES, learning_rate


def rates(optim: OptimConfig, total: int) -> list[float]:
    return [learning_rate(1.0, optim, step, total) for step in range(1, total + 1)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447]),
    ],
)
def test_warm_up_then_fall(schedule, expected):
    found = rates(OptimConfig(schedule=schedule, warmup_steps=2), 6)
    assert found == pytest.approx(expected, abs=1e-6)


def test_without_warm_up_the_first_step_is_the_peak():
    assert rates(OptimConfig(schedule="linear"), 4) == [1.0, 0.75, 0.5, 0.25]
    assert rates(OptimConfig(schedule="cosine"), 1) == [1.0]


def test_a_warm_up_as_long_as_the_run_never_falls():
    assert rates(OptimConfig(schedule="linear", warmup_steps=4), 4) == [0.25, 0.5, 0.75, 1.0]


def test_the_configuration_offers_exactly_these():
    offered = typing.get_args(chz.chz_fields(OptimConfig)["schedule"].final_type)
    assert set(offered) == set(SCHEDULES)
