"""Tries held-out problems with the present weights, and says what came of it and how sure that is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

from tinsmith.records.metrics import METRICS
from tinsmith.rl.config import RolloutConfig
from tinsmith.rl.pass_at_k import Estimate, Tries, mean_reward, pass_rate
from tinsmith.rl.policy import derive_seed
from tinsmith.rl.rollouts import OnDone, roll_groups
from tinsmith.rl.types import Metrics, Policy, ProblemSource, RolloutLimits, TrajectoryGroup


class EvalSettings(Protocol):
    """What an evaluation needs of a configuration; TrainConfig and EvalConfig both have it."""

    @property
    def rollout(self) -> RolloutConfig: ...
    @property
    def eval_size(self) -> int: ...
    @property
    def eval_samples(self) -> int: ...
    @property
    def seed(self) -> int: ...
    def limits(self) -> RolloutLimits: ...


async def evaluate(
    config: EvalSettings, held_out: ProblemSource, policy: Policy, *, on_done: OnDone
) -> list[TrajectoryGroup]:
    """`eval_samples` rollouts of each held-out problem, sampled as in training.

    Problems and seeds are the same each time: what differs between two evaluations is the policy.
    """
    size = min(config.eval_size, len(held_out))
    at_once = config.rollout.concurrent // config.eval_samples
    return await roll_groups(
        {position: held_out.problem(position) for position in range(size)},
        policy,
        config.eval_samples,
        config.limits(),
        seed=derive_seed(config.seed, "eval"),
        on_done=on_done,
        slots=asyncio.Semaphore(max(at_once, 1)) if config.rollout.concurrent else None,
    )


def passed(reward: float, metrics: Metrics) -> bool:
    """Whether a rollout solved its problem: the environment says `correct`, else its reward is 1 or more."""
    return metrics["correct"] > 0 if "correct" in metrics else reward >= 1


def eval_metrics(groups_P: Sequence[TrajectoryGroup]) -> Metrics:
    """Held-out reward and pass rates with their intervals, and what the rollouts were like.

    A rollout that failed has no reward and passed nothing: it counts in eval/failed_rollouts alone.
    pass@k needs k rollouts that ended, so a problem with a failed one is left out of it.
    """
    ended = [t for group in groups_P for t in group.trajectories_G if t.error is None]
    total = sum(len(group.trajectories_G) for group in groups_P)
    k = max((len(group.trajectories_G) for group in groups_P), default=0)
    values: Metrics = {
        "eval/problems": len(groups_P),
        "eval/samples": k,
        "eval/failed_rollouts": total - len(ended),
    }
    if not ended:
        return values
    tries_P = [_tries(group) for group in groups_P]
    values |= _reward_metrics(groups_P)
    values |= _bounded("eval/pass@1", pass_rate(tries_P, 1))
    if k > 1:
        values |= _bounded("eval/pass@k", pass_rate(tries_P, k))
    values["eval/tokens"] = _mean([t.action_tokens for t in ended])
    values["eval/cut_off"] = _mean([t.cut_off for t in ended])
    return values | _env_metrics(groups_P)


def _tries(group: TrajectoryGroup) -> Tries:
    """The group's rollouts that ended, and how many of them passed."""
    outcomes = [
        passed(reward, metrics)
        for reward, metrics in zip(group.rewards_G(), group.metrics_G, strict=True)
        if reward is not None
    ]
    return Tries(len(outcomes), sum(outcomes))


def _reward_metrics(groups_P: Sequence[TrajectoryGroup]) -> Metrics:
    rewards_P = [[r for r in group.rewards_G() if r is not None] for group in groups_P]
    estimate, stderr = mean_reward([_mean(rewards_G) for rewards_G in rewards_P if rewards_G])
    values = _bounded("eval/reward", estimate)
    return values if stderr is None else values | {"eval/reward_stderr": stderr}


def _bounded(name: str, estimate: Estimate | None) -> Metrics:
    """A value with its bounds, those that are finite."""
    if estimate is None:
        return {}
    values = {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return {key: value for key, value in values.items() if math.isfinite(value)}


def _env_metrics(groups_P: Sequence[TrajectoryGroup]) -> Metrics:
    """Means of what the environment measured; names that are not declared get the prefix eval/env/."""
    seen: dict[str, list[float]] = {}
    for group in groups_P:
        for metrics in group.metrics_G:
            for name, value in metrics.items():
                own = f"eval/{name}" if f"eval/{name}" in METRICS else f"eval/env/{name}"
                seen.setdefault(own, []).append(value)
    return {name: _mean(values) for name, values in sorted(seen.items())}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
