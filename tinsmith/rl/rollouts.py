"""Rolls out one problem: all its rollouts at once, within limits; a failed one is data, not a crash."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tinsmith.errors import RunError
from tinsmith.rl.failures import explain
from tinsmith.rl.policy import derive_seed
from tinsmith.rl.types import (
    Action,
    Env,
    EnvGroupBuilder,
    Metrics,
    Observation,
    Policy,
    RolloutLimits,
    Trajectory,
    TrajectoryGroup,
    Transition,
)

Failure: TypeAlias = str  # why a rollout broke off
OnDone: TypeAlias = Callable[[int, int], None]  # rollouts done, of how many


async def roll_batch(
    builders: Sequence[EnvGroupBuilder],
    policy: Policy,
    group_size: int,
    limits: RolloutLimits,
    *,
    seed: int,
    on_done: OnDone,
) -> list[TrajectoryGroup]:
    """`group_size` rollouts of every problem, all at once."""
    total = len(builders) * group_size
    done = 0
    on_done(0, total)

    async def roll(index: int) -> TrajectoryGroup:
        nonlocal done
        own_seed = derive_seed(seed, index)
        group = await roll_group(builders[index], policy, group_size, limits, seed=own_seed)
        done += group_size
        on_done(done, total)
        return group

    return await asyncio.gather(*(roll(index) for index in range(len(builders))))


def refuse_all_failed(groups_P: Sequence[TrajectoryGroup]) -> None:
    """Raise when no rollout ended: then something is wrong that going on would not cure."""
    errors = [t.error for group in groups_P for t in group.trajectories_G]
    reasons = Counter(error for error in errors if error is not None)
    if errors and reasons.total() == len(errors):
        reason, times = reasons.most_common(1)[0]
        raise RunError(f"all {len(errors)} rollouts failed; {times} of them said: {reason}")


async def roll_group(
    builder: EnvGroupBuilder, policy: Policy, group_size: int, limits: RolloutLimits, *, seed: int
) -> TrajectoryGroup:
    """`group_size` rollouts of one problem.

    First turns that begin alike are sampled by one request, and every later turn has a seed of its
    own, so the tokens depend on the seed and never on which rollout was quicker.
    """
    began = time.monotonic()
    try:
        try:
            envs_G = await builder.make_envs(group_size)
            firsts_G = await asyncio.gather(*(_first_observation(env) for env in envs_G))
            actions_G = await _first_actions(firsts_G, policy, limits, seed)
            trajectories_G = await asyncio.gather(
                *(
                    _roll(env, first, action, policy, limits, derive_seed(seed, "member", g), began)
                    for g, (env, first, action) in enumerate(
                        zip(envs_G, firsts_G, actions_G, strict=True)
                    )
                )
            )
            return await _with_group_rewards(builder, trajectories_G, envs_G)
        except Exception as error:  # noqa: BLE001  a problem that fails is recorded with its reason
            return _all_failed(builder.problem_id, group_size, _reason(error))
    finally:
        await asyncio.shield(builder.cleanup())


async def _first_observation(env: Env) -> Observation | Failure:
    try:
        return await env.initial_observation()
    except Exception as error:  # noqa: BLE001  recorded as this rollout's error
        return _reason(error)


async def _first_actions(
    firsts_G: Sequence[Observation | Failure], policy: Policy, limits: RolloutLimits, seed: int
) -> list[Action | Failure]:
    """What each rollout says first; members with the same observation share a request."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for g, first in enumerate(firsts_G):
        if isinstance(first, Observation):
            alike.setdefault((*first.tokens_T, first.stop), []).append(g)
    answers = await asyncio.gather(
        *(
            _sample(
                policy, firsts_G[members[0]], limits, len(members), derive_seed(seed, 0, members[0])
            )
            for members in alike.values()
        )
    )
    actions_G: list[Action | Failure] = [
        first if isinstance(first, str) else "no answer came" for first in firsts_G
    ]
    for members, actions in zip(alike.values(), answers, strict=True):
        for g, action in zip(members, actions, strict=False):
            actions_G[g] = action
    return actions_G


async def _sample(
    policy: Policy, observation: Observation | Failure, limits: RolloutLimits, count: int, seed: int
) -> list[Action] | list[Failure]:
    assert isinstance(observation, Observation)
    try:
        return await policy(
            observation, max_tokens=limits.max_tokens_per_turn, samples=count, seed=seed
        )
    except Exception as error:  # noqa: BLE001  recorded as these rollouts' error
        return [_reason(error)] * count


async def _roll(
    env: Env,
    first: Observation | Failure,
    action: Action | Failure,
    policy: Policy,
    limits: RolloutLimits,
    seed: int,
    began: float,
) -> Trajectory:
    """One rollout from its first action on."""
    transitions: list[Transition] = []
    error: Failure | None = None
    stop_reason = "error"
    try:
        async with asyncio.timeout(limits.seconds):
            stop_reason = await _play(env, first, action, policy, limits, seed, transitions)
    except TimeoutError:
        error = f"took longer than {limits.seconds:g} s"
    except Exception as raised:  # noqa: BLE001  recorded as this rollout's error
        error = _reason(raised)
    return Trajectory(transitions, stop_reason, time.monotonic() - began, error)


async def _play(
    env: Env,
    observation: Observation | Failure,
    action: Action | Failure,
    policy: Policy,
    limits: RolloutLimits,
    seed: int,
    transitions: list[Transition],
) -> str:
    """Take turns until the environment or a limit ends it; fills `transitions`, says why it ended."""
    while True:
        if isinstance(observation, str) or isinstance(action, str):
            raise RolloutFailed(observation if isinstance(observation, str) else action)
        result = await env.step(action)
        transitions.append(
            Transition(observation, action, result.reward, result.metrics, result.logs)
        )
        if result.done or result.next is None:
            return "cut_off" if action.stop_reason == "length" else "done"
        if len(transitions) >= limits.max_turns:
            return "max_turns"
        room = limits.max_trajectory_tokens
        if room is not None and len(result.next.tokens_T) + limits.max_tokens_per_turn > room:
            return "max_trajectory_tokens"
        observation = result.next
        turn_seed = derive_seed(seed, len(transitions))
        action = (await _sample(policy, observation, limits, 1, turn_seed))[0]


class RolloutFailed(Exception):
    """Carries a reason that is already a sentence."""


async def _with_group_rewards(
    builder: EnvGroupBuilder, trajectories_G: list[Trajectory], envs_G: Sequence[Env]
) -> TrajectoryGroup:
    """Let the problem judge the rollouts that ended; the failed ones keep their places."""
    ended = [g for g, trajectory in enumerate(trajectories_G) if trajectory.error is None]
    judged = await builder.group_rewards(
        [trajectories_G[g] for g in ended], [envs_G[g] for g in ended]
    )
    finals_G = [0.0] * len(trajectories_G)
    metrics_G: list[Metrics] = [{} for _ in trajectories_G]
    for g, (final, metrics) in zip(ended, judged, strict=True):
        finals_G[g] = final
        metrics_G[g] = _merged(trajectories_G[g], metrics)
    return TrajectoryGroup(builder.problem_id, trajectories_G, finals_G, metrics_G)


def _merged(trajectory: Trajectory, final: Metrics) -> Metrics:
    """A rollout's metrics: those of its last turns over those of its first, the group's over all."""
    merged: Metrics = {}
    for transition in trajectory.transitions:
        merged |= transition.metrics
    return merged | final


def _all_failed(problem_id: str, group_size: int, reason: Failure) -> TrajectoryGroup:
    failed = Trajectory([], "error", error=reason)
    return TrajectoryGroup(
        problem_id, [failed] * group_size, [0.0] * group_size, [{} for _ in range(group_size)]
    )


def _reason(error: Exception) -> Failure:
    return str(error) if isinstance(error, RolloutFailed) else explain(error)
