"""Computes the metrics that records/metrics.py declares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tinsmith.records.metrics import METRICS
from tinsmith.rl.advantages import is_mixed
from tinsmith.rl.types import Metrics, TrajectoryGroup

if TYPE_CHECKING:
    import tinker

GRAD_NORM = "unclipped_grad_l2:mean"


def rollout_metrics(groups_P: Sequence[TrajectoryGroup]) -> Metrics:
    """What the rollouts of a step were like, all of them, trained on or not."""
    rewards = _rewards(groups_P)
    ended = [t for group in groups_P for t in group.trajectories_G if t.error is None]
    total = sum(len(group.trajectories_G) for group in groups_P)
    values: Metrics = {"rollouts": total, "failed_rollouts": total - len(ended)}
    if not ended:
        return values
    logprobs = [lp for t in ended for s in t.transitions for lp in s.action.logprobs_T]
    return values | {
        "reward": float(np.mean(rewards)),
        "reward_std": float(np.std(rewards)),
        "cut_off": float(np.mean([t.cut_off for t in ended])),
        "tokens": float(np.mean([t.action_tokens for t in ended])),
        "turns": float(np.mean([len(t.transitions) for t in ended])),
        "entropy": -float(np.mean(logprobs)) if logprobs else 0.0,
        **_env_metrics(groups_P),
    }


def group_metrics(
    groups_P: Sequence[TrajectoryGroup], advantages_P: Sequence[Sequence[float | None]]
) -> Metrics:
    """How many problems taught something, and how many rollouts the update uses."""
    kinds = [_kind(group) for group in groups_P]
    return {
        "groups/mixed": kinds.count("mixed"),
        "groups/all_right": kinds.count("all_right"),
        "groups/all_wrong": kinds.count("all_wrong"),
        "trained_rollouts": sum(
            a is not None for advantages_G in advantages_P for a in advantages_G
        ),
    }


def update_metrics(
    datums: Sequence[tinker.Datum],
    passed: tinker.ForwardBackwardOutput,
    stepped: tinker.OptimStepResponse,
) -> Metrics:
    """What the update was like, from the answers of forward_backward and optim_step."""
    trainer = np.concatenate([o["logprobs"].to_numpy() for o in passed.loss_fn_outputs])
    sampler = np.concatenate([d.loss_fn_inputs["logprobs"].to_numpy() for d in datums])
    advantages = np.concatenate([d.loss_fn_inputs["advantages"].to_numpy() for d in datums])
    # Prompt tokens carry neither; a sampled one has an advantage, or a log-probability below zero.
    sampled = (advantages != 0) | (sampler != 0)
    gap = (trainer - sampler)[sampled].astype(np.float64)
    count = max(int(sampled.sum()), 1)
    values: Metrics = {
        "trained_tokens": float(sampled.sum()),
        "loss": passed.metrics.get("loss:sum", math.nan) / count,
        # exp(d) - 1 - d is positive whatever d is, and its mean under the sampler is the divergence.
        "kl": float(np.mean(np.expm1(gap) - gap)) if len(gap) else 0.0,
    }
    if stepped.metrics and GRAD_NORM in stepped.metrics:
        values["grad_norm"] = float(stepped.metrics[GRAD_NORM])
    return values


def eval_metrics(groups_P: Sequence[TrajectoryGroup]) -> Metrics:
    """Held-out reward with its standard error over problems, and the environment's own metrics."""
    means = [float(np.mean(rewards)) for g in groups_P if len(rewards := _rewards([g]))]
    failed = sum(t.error is not None for g in groups_P for t in g.trajectories_G)
    values: Metrics = {"eval/problems": len(groups_P), "eval/failed_rollouts": failed}
    if means:
        values["eval/reward"] = float(np.mean(means))
        if len(means) > 1:
            values["eval/reward_stderr"] = float(np.std(means, ddof=1) / math.sqrt(len(means)))
    return values | {f"eval/{name}": value for name, value in _env_metrics(groups_P).items()}


def _rewards(groups_P: Sequence[TrajectoryGroup]) -> list[float]:
    return [reward for group in groups_P for reward in group.rewards_G() if reward is not None]


def _kind(group: TrajectoryGroup) -> str:
    rewards_G = group.rewards_G()
    ended = [reward for reward in rewards_G if reward is not None]
    if not ended:
        return "failed"
    if is_mixed(rewards_G):
        return "mixed"
    return "all_right" if ended[0] > 0 else "all_wrong"


def _env_metrics(groups_P: Sequence[TrajectoryGroup]) -> Metrics:
    """Means of what the environment measured; names that are not declared get the prefix env/."""
    seen: dict[str, list[float]] = {}
    for group in groups_P:
        for metrics in group.metrics_G:
            for name, value in metrics.items():
                seen.setdefault(name if name in METRICS else f"env/{name}", []).append(value)
    return {name: float(np.mean(values)) for name, values in sorted(seen.items())}
