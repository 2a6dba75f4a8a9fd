"""Turns rollouts into the records that views read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from tinsmith.chat.render import Renderer
from tinsmith.records.rollout import RolloutRecord, Split, Turn
from tinsmith.rl.types import Trajectory, TrajectoryGroup


def to_records(
    groups_P: Sequence[TrajectoryGroup],
    advantages_P: Sequence[Sequence[float | None]] | None,
    renderer: Renderer,
    step: int,
    split: Split,
) -> list[RolloutRecord]:
    """A record for every rollout, failed ones included."""
    records: list[RolloutRecord] = []
    # The rollouts of a problem share its prompt, and many replies are alike.
    text = functools.cache(renderer.text)
    for p, group in enumerate(groups_P):
        for g, (trajectory, reward) in enumerate(
            zip(group.trajectories_G, group.rewards_G(), strict=True)
        ):
            record = RolloutRecord(
                step=step,
                problem_id=group.problem_id,
                member=g,
                split=split,
                policy_version=_version(trajectory),
                reward=reward,
                advantage=advantages_P[p][g] if advantages_P is not None else None,
                stop_reason=trajectory.stop_reason,
                turns=_turns(trajectory, text),
                metrics=group.metrics_G[g],
                seconds=round(trajectory.seconds, 4),
                error=trajectory.error,
                retried=list(trajectory.retried),
            )
            records.append(record)
    return records


def _version(trajectory: Trajectory) -> int:
    """Of the oldest weights that spoke in it."""
    return min((s.action.version for s in trajectory.transitions), default=0)


def _turns(trajectory: Trajectory, text: Callable[[tuple[int, ...]], str]) -> list[Turn]:
    """Each observation without what an earlier turn has already shown, then what was said."""
    turns: list[Turn] = []
    before: list[int] = []
    for transition in trajectory.transitions:
        shown = transition.observation.tokens_T
        new = shown[len(before) :] if before and shown[: len(before)] == before else shown
        action = transition.action
        turns.append({"role": "prompt", "text": text(tuple(new)), "tokens": new})
        turns.append(
            {
                "role": "assistant",
                "text": text(tuple(action.tokens_T)),
                "tokens": action.tokens_T,
                "logprobs": np.round(action.logprobs_T, 6).tolist(),
                "version": action.version,
                "reward": transition.reward,
                "logs": transition.logs,
            }
        )
        before = shown + action.tokens_T
    return turns
