"""Rolls out problems: the rollouts of one all at once, within limits; a failed one is data, not a crash."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
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

OnDone: TypeAlias = Callable[[int, int], None]  # rollouts done, of how many


class RolloutFailed(Exception):
    """Carries a reason that is already a sentence."""


async def roll_groups(
    builders: Mapping[int, EnvGroupBuilder],
    policy: Policy,
    group_size: int,
    limits: RolloutLimits,
    *,
    seed: int,
    on_done: OnDone,
    slots: asyncio.Semaphore | None = None,
) -> list[TrajectoryGroup]:
    """`group_size` rollouts of the problem at every position, all at once or as many as there are slots."""
    total = len(builders) * group_size
    done = 0
    on_done(0, total)

    async def roll(position: int) -> TrajectoryGroup:
        nonlocal done
        async with slots or nullcontext():
            group = await roll_group(
                builders[position], policy, group_size, limits, seed=derive_seed(seed, position)
            )
        done += group_size
        on_done(done, total)
        return replace(group, position=position)

    return await asyncio.gather(*map(roll, builders))


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
    try:
        try:
            envs_G = list(await builder.make_envs(group_size))
            rolls_G = [
                _Roll(policy, limits, derive_seed(seed, "member", g)) for g in range(group_size)
            ]
            trajectories_G = await _roll_together(envs_G, rolls_G, policy, limits, seed)
            tried_G = await asyncio.gather(
                *map(_retry, [builder] * group_size, rolls_G, trajectories_G, envs_G)
            )
            return await _with_group_rewards(
                builder, [trajectory for trajectory, _ in tried_G], [env for _, env in tried_G]
            )
        except Exception as error:  # noqa: BLE001  a problem that fails is recorded with its reason
            return _all_failed(builder.problem_id, group_size, _reason(error))
    finally:
        await asyncio.shield(builder.cleanup())


async def _roll_together(
    envs_G: Sequence[Env],
    rolls_G: Sequence[_Roll],
    policy: Policy,
    limits: RolloutLimits,
    seed: int,
) -> list[Trajectory]:
    """All rollouts of a group at once; those whose first observations are alike share a request."""
    firsts_G = await asyncio.gather(*map(_first_observation, envs_G))
    alike: dict[tuple[object, ...], list[int]] = {}
    for g, first in enumerate(firsts_G):
        key = (*first.tokens_T, first.stop) if isinstance(first, Observation) else ("failed", g)
        alike.setdefault(key, []).append(g)
    speaking: dict[int, asyncio.Task[list[Action]]] = {}
    for members in alike.values():
        first = firsts_G[members[0]]
        if isinstance(first, Observation):
            asking = _say(policy, first, limits, len(members), derive_seed(seed, 0, members[0]), 0)
            task = asyncio.ensure_future(asking)
            speaking |= dict.fromkeys(members, task)

    async def play(g: int) -> Trajectory:
        first = firsts_G[g]
        if isinstance(first, Exception):
            return Trajectory([], "error", error=_reason(first))
        place = alike[(*first.tokens_T, first.stop)].index(g)
        return await rolls_G[g].play(envs_G[g], first, speaking[g], place)

    try:
        return await asyncio.gather(*map(play, range(len(envs_G))))
    finally:
        for task in speaking.values():
            task.cancel()
        await asyncio.gather(*speaking.values(), return_exceptions=True)


async def _first_observation(env: Env) -> Observation | Exception:
    try:
        return await env.initial_observation()
    except Exception as error:  # noqa: BLE001  recorded as this rollout's error
        return error


async def _retry(
    builder: EnvGroupBuilder, roll: _Roll, failed: Trajectory, env: Env
) -> tuple[Trajectory, Env]:
    """Try a failed rollout again in a new environment, with other words, as often as the limits allow."""
    reasons: list[str] = []
    trajectory = failed
    while trajectory.error is not None and len(reasons) < roll.limits.retries:
        reasons.append(trajectory.error)
        again = replace(roll, seed=derive_seed(roll.seed, "try", len(reasons)))
        try:
            (env,) = await builder.make_envs(1)
            first = await env.initial_observation()
        except Exception as error:  # noqa: BLE001  recorded as this rollout's error
            trajectory = Trajectory([], "error", error=_reason(error))
            continue
        asking = _say(again.policy, first, again.limits, 1, derive_seed(again.seed, 0), 0)
        speaking = asyncio.ensure_future(asking)
        try:
            trajectory = await again.play(env, first, speaking, 0)
        finally:
            speaking.cancel()
    return replace(trajectory, retried=tuple(reasons)), env


async def _say(
    policy: Policy,
    observation: Observation,
    limits: RolloutLimits,
    count: int,
    seed: int,
    tries: int,
) -> list[Action]:
    """What the policy says. A request that fails is made again as it was, so the words stay the same."""
    room = limits.max_tokens_per_turn
    if limits.max_trajectory_tokens is not None:
        room = min(room, limits.max_trajectory_tokens - len(observation.tokens_T))
        if room < 1:
            raise RolloutFailed(
                f"the prompt has {len(observation.tokens_T)} tokens and leaves no room within "
                f"rollout.max_tokens={limits.max_trajectory_tokens}"
            )
    try:
        actions = await policy(observation, max_tokens=room, samples=count, seed=seed)
    except Exception:
        if tries >= limits.retries:
            raise
        return await _say(policy, observation, limits, count, seed, tries + 1)
    if len(actions) != count:
        raise RolloutFailed(f"the service gave {len(actions)} answers where {count} were asked for")
    return actions


@dataclass(frozen=True)
class _Roll:
    """One rollout: who speaks, within which limits, from which seed."""

    policy: Policy
    limits: RolloutLimits
    seed: int

    async def play(
        self, env: Env, first: Observation, speaking: asyncio.Task[list[Action]], place: int
    ) -> Trajectory:
        """From the first words on, which others may be waiting for too, to the end."""
        began = time.monotonic()
        transitions: list[Transition] = []
        stop_reason, error = "error", None
        limit = asyncio.timeout(self.limits.seconds)
        try:
            async with limit:
                action = (await asyncio.shield(speaking))[place]
                stop_reason = await self._take_turns(env, first, action, transitions)
        except Exception as raised:  # noqa: BLE001  recorded as this rollout's error
            error = _reason(raised)
            if limit.expired():
                error = f"took longer than {self.limits.seconds:g} s (rollout.seconds)"
        return Trajectory(transitions, stop_reason, time.monotonic() - began, error)

    async def _take_turns(
        self, env: Env, observation: Observation, action: Action, transitions: list[Transition]
    ) -> str:
        """Until the environment or a limit ends it; fills `transitions`, says why it ended."""
        while True:
            result = await env.step(action)
            transitions.append(
                Transition(observation, action, result.reward, result.metrics, result.logs)
            )
            if result.done or result.next is None:
                return "cut_off" if action.stop_reason == "length" else "done"
            if len(transitions) >= self.limits.max_turns:
                return "max_turns"
            room = self.limits.max_trajectory_tokens
            if room is not None and len(result.next.tokens_T) >= room:
                return "max_trajectory_tokens"
            observation = result.next
            turn_seed = derive_seed(self.seed, len(transitions))
            (action,) = await _say(self.policy, observation, self.limits, 1, turn_seed, 0)


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


def _all_failed(problem_id: str, group_size: int, reason: str) -> TrajectoryGroup:
    failed = Trajectory([], "error", error=reason)
    return TrajectoryGroup(
        problem_id, [failed] * group_size, [0.0] * group_size, [{} for _ in range(group_size)]
    )


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, RolloutFailed) else explain(error)
