"""Metrics on rollouts worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tinker

from tinsmith.records.metrics import is_declared
from tinsmith.rl.advantages import advantages_of, centred
from tinsmith.rl.datums import to_datums
from tinsmith.rl.metrics import eval_metrics, group_metrics, rollout_metrics, update_metrics
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
    assert values == {"rollouts": 1, "failed_rollouts": 1}
    assert "eval/reward" not in eval_metrics([group(rollout(0.0, error="boom"))])


def test_the_held_out_error_bar_is_over_problems():
    values = eval_metrics(GROUPS)
    means = [0.5, 1.0, 0.0]
    assert values["eval/reward"] == pytest.approx(0.5)
    assert values["eval/reward_stderr"] == pytest.approx(np.std(means, ddof=1) / math.sqrt(3))
    assert (values["eval/problems"], values["eval/failed_rollouts"]) == (3, 1)
    assert all(map(is_declared, values))


def test_kl_and_loss_count_sampled_tokens_only():
    datums = to_datums([MIXED], [advantages_of(MIXED, centred)])
    shift = math.log(1.1)
    outputs = []
    for datum in datums:
        sampler = datum.loss_fn_inputs["logprobs"].to_numpy()
        trainer = np.where(sampler != 0, sampler + shift, -7.0).astype(np.float32)
        outputs.append({"logprobs": tinker.TensorData.from_numpy(trainer)})
    passed = tinker.ForwardBackwardOutput("x", outputs, {"loss:sum": 8.0})
    stepped = tinker.types.OptimStepResponse(metrics={"unclipped_grad_l2:mean": 3.0})
    values = update_metrics(datums, passed, stepped)
    assert values["trained_tokens"] == 4
    assert values["loss"] == 2.0
    assert values["kl"] == pytest.approx(0.1 - shift, abs=1e-6)
    assert values["grad_norm"] == 3.0
    assert "grad_norm" not in update_metrics(datums, passed, tinker.types.OptimStepResponse())
