"""Tries held-out problems with the present weights, by the same code that rolls out training ones."""

from __future__ import annotations

from tinsmith.rl.config import TrainConfig
from tinsmith.rl.policy import derive_seed
from tinsmith.rl.rollouts import OnDone, roll_batch
from tinsmith.rl.types import Policy, ProblemSource, TrajectoryGroup

FIRST_BATCH = 1  # every evaluation of a run tries the same problems
ROLLOUTS_OF_EACH = 1  # many problems once say more than a few problems often


async def evaluate(
    config: TrainConfig, held_out: ProblemSource, policy: Policy, *, on_done: OnDone
) -> list[TrajectoryGroup]:
    """One rollout of each held-out problem, sampled as in training, so that the two rewards compare.

    The seeds are the same each time: what differs between two evaluations is the policy.
    """
    return await roll_batch(
        held_out.batch(FIRST_BATCH, min(config.eval_size, len(held_out))),
        policy,
        ROLLOUTS_OF_EACH,
        config.env.limits(),
        seed=derive_seed(config.seed, "eval"),
        on_done=on_done,
    )
