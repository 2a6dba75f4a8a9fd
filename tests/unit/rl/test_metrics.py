"""Metrics on rollouts worked out by hand."""

from __future__ import annotations

import pytest

from tinsmith.records.metrics import is_declared
from tinsmith.rl.advantages import advantages_of, centred
from tinsmith.rl.metrics import group_metrics, rollout_metrics, waiting_metrics
from tinsmith.rl.types import Action, Observation, Trajectory, TrajectoryGroup, Transition


def rollout(reward, *, logprobs=(-1.0, -2.0), cut=False, error=None):
    action = Action(list(range(len(logprobs))), list(logprobs), "length" if cut else "stop")
    return Trajectory([Transition(Observation([5, 6]), action, reward)], "done", error=error)


def group(*trajectories, metrics=None):
    count = len(trajectories)
    return TrajectoryGroup("p", list(trajectories), [0.0] * count, metrics or [{}] * count)


MIXED = group(rollout(1.0, cut=True), rollout(0.0), metrics=[{"correct": 1.0}, {"correct": 0.0}])
RIGHT = group(rollout(1.0), rollout(1.0), metrics=[{"correct": 1.0, "odd": 4.0}] * 2)
WRONG = group(rollout(0.0), rollout(0.0, error="boom"), metrics=[{"correct": 0.0}, {}])
GROUPS = [MIXED, RIGHT, WRONG]


def test_reward_is_over_all_rollouts_that_ended():
    values = rollout_metrics(GROUPS)
    assert values["reward"] == pytest.approx(3 / 5)
    assert values["correct"] == pytest.approx(3 / 5)
    assert values["cut_off"] == pytest.approx(1 / 5)
    assert values["entropy"] == pytest.approx(1.5)
    assert values["tokens"] == 2
    assert (values["rollouts"], values["failed_rollouts"]) == (6, 1)
    assert values["env/odd"] == 4.0
    assert all(map(is_declared, values))


def test_groups_are_counted_by_kind():
    advantages = [advantages_of(g, centred) for g in GROUPS]
    assert group_metrics(GROUPS, advantages) == {
        "groups/mixed": 1,
        "groups/all_right": 1,
        "groups/all_wrong": 1,
        "trained_rollouts": 2,
    }


def test_nothing_but_failures_has_no_reward():
    values = rollout_metrics([group(rollout(0.0, error="boom"))])
    assert values == {"rollouts": 1, "failed_rollouts": 1, "retried_rollouts": 0}


def test_waiting_is_the_share_of_both_sides_time():
    values = {"tokens": 10.0, "rollouts": 8, "failed_rollouts": 2, "trained_sequence_tokens": 600.0}
    found = waiting_metrics(10.0, 6.0, 2.0, values)
    assert found["time/sampler_waiting"] == 4.0
    assert found["time/trainer_waiting"] == 8.0
    assert found["time/waiting"] == pytest.approx(0.6)
    assert found["time/sampled_tokens_per_second"] == 10.0
    assert found["time/trained_tokens_per_second"] == 300.0
    assert all(map(is_declared, found))
