"""Computes the metrics that records/metrics.py declares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinsmith.records.metrics import METRICS
from tinsmith.rl.advantages import is_mixed
from tinsmith.rl.types import Metrics, TrajectoryGroup


def rollout_metrics(groups_P: Sequence[TrajectoryGroup]) -> Metrics:
    """What the rollouts of a step were like, all of them, trained on or not."""
    rewards = _rewards(groups_P)
    ended = [t for group in groups_P for t in group.trajectories_G if t.error is None]
    total = sum(len(group.trajectories_G) for group in groups_P)
    values: Metrics = {
        "rollouts": total,
        "failed_rollouts": total - len(ended),
        "retried_rollouts": sum(len(t.retried) for g in groups_P for t in g.trajectories_G),
    }
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


def waiting_metrics(seconds: float, sampling: float, training: float, values: Metrics) -> Metrics:
    """How long each side of a step worked and stood still, and its speed while it worked."""
    said = values.get("tokens", 0.0) * (values["rollouts"] - values["failed_rollouts"])
    passed = values.get("trained_sequence_tokens", 0.0)
    idle = max(seconds - sampling, 0.0), max(seconds - training, 0.0)
    return {
        "time/step": seconds,
        "time/sample": sampling,
        "time/train": training,
        "time/sampler_waiting": idle[0],
        "time/trainer_waiting": idle[1],
        "time/waiting": sum(idle) / (2 * seconds),
        "time/sampled_tokens_per_second": said / sampling if sampling else 0.0,
        "time/trained_tokens_per_second": passed / training if training else 0.0,
    }


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
