"""Where groups come from: in order and by one policy, or as they finish and never too old."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import chz
import pytest

from tinsmith.rl.config import EnvConfig, TrainConfig
from tinsmith.rl.sampling import OffPolicySource, OnPolicySource, Roller, all_at_once
from tinsmith.rl.types import Action, Observation, RolloutLimits, StepResult
from tinsmith.rl.waiting import Busy


class Version:
    """A policy that says nothing but its version."""

    def __init__(self, version: int) -> None:
        self.version = version

    async def __call__(self, observation, *, max_tokens, samples, seed):
        return [Action([i], [-1.0], "stop", self.version) for i in range(samples)]


class Door:
    """Problems that end when their door is opened; all others at once."""

    def __init__(self, *closed: int, alike: frozenset[int] = frozenset()) -> None:
        self.events = {position: asyncio.Event() for position in closed}
        self.alike = alike
        self.begun: list[int] = []

    def __len__(self) -> int:
        return 10

    def problem(self, position: int) -> DoorGroup:
        self.begun.append(position)
        return DoorGroup(self, position)


class DoorGroup:
    def __init__(self, door: Door, position: int) -> None:
        self.door, self.position, self.problem_id = door, position, f"door/{position}"

    async def make_envs(self, group_size):
        return [DoorEnv(self.door, self.position, g) for g in range(group_size)]

    async def group_rewards(self, trajectories_G, envs_G):
        return [(0.0, {}) for _ in trajectories_G]

    async def cleanup(self):
        return None


class DoorEnv:
    def __init__(self, door: Door, position: int, member: int) -> None:
        self.door, self.position, self.member = door, position, member

    async def initial_observation(self):
        return Observation([self.position])

    async def step(self, action):
        if event := self.door.events.get(self.position):
            await event.wait()
        same = self.position in self.door.alike
        return StepResult(0.0 if same else float(self.member), done=True)


@chz.chz
class DoorConfig(EnvConfig):
    def limits(self):
        return RolloutLimits(max_tokens_per_turn=1)


def configure(**values) -> TrainConfig:
    defaults = {"env": DoorConfig(), "batch_size": 2, "group_size": 2, "num_batches": 4}
    return TrainConfig(**{**defaults, **values})


async def until(condition) -> None:
    """Let the other tasks go on until something has come about."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come about")


async def positions(source, step: int, version: int) -> list[int]:
    async with aclosing(source.groups(step, Version(version), lambda: None)) as groups:
        return [group.position async for group in groups]


async def test_in_order_whichever_is_quicker():
    door = Door(0)
    source = OnPolicySource(Roller.of(configure(), door, Busy()), {"drawn": 0})
    taking = asyncio.ensure_future(positions(source, 1, 0))
    await until(lambda: len(door.begun) == 2)
    door.events[0].set()
    assert await taking == [0, 1]
    assert await positions(source, 2, 1) == [2, 3]
    assert source.state() == {"drawn": 4}
    assert source.metrics() == {"epoch": 0.4}


async def test_an_abandoned_step_is_done_again_with_the_same_problems():
    door = Door(1)
    source = OnPolicySource(Roller.of(configure(), door, Busy()), {"drawn": 0})
    groups = all_at_once(source.groups(1, Version(0), lambda: None))
    coming = asyncio.ensure_future(anext(groups))
    await until(lambda: len(door.begun) == 2)
    coming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await coming
    await groups.aclose()
    assert source.state() == {"drawn": 0}
    door.events[1].set()
    assert await positions(source, 1, 0) == [0, 1]


async def test_groups_without_signal_bring_further_problems_in_order():
    door = Door(alike=frozenset({0, 2}))
    config = configure(no_signal="resample")
    source = OnPolicySource(Roller.of(config, door, Busy()), {"drawn": 0})
    assert await positions(source, 1, 0) == [0, 1, 2, 3]
    assert source.metrics()["groups/resampled"] == 2
    assert source.state() == {"drawn": 4}


async def test_off_policy_samples_ahead_but_not_too_far():
    door = Door()
    config = configure(mode="async", max_steps_off_policy=2)
    source = OffPolicySource.of(Roller.of(config, door, Busy()), Version(0), {"drawn": 0})
    assert sorted(await positions(source, 1, 0)) == [0, 1]
    assert source.state() == {"drawn": 6, "waiting": [2, 3, 4, 5]}
    await source.close()
    assert set(door.begun) <= set(range(6))


async def test_a_group_that_grew_too_old_is_thrown_away_and_its_problem_comes_again():
    door = Door(0)
    config = configure(mode="async", max_steps_off_policy=1, num_batches=9)
    source = OffPolicySource.of(Roller.of(config, door, Busy()), Version(0), {"drawn": 0})
    taken = [await positions(source, step, step - 1) for step in (1, 2, 3)]
    assert all(0 not in step for step in taken)
    door.events[0].set()
    await until(lambda: source.finished.qsize() > 0)
    for _ in range(3):  # the group of position 0 ends and is noticed by one of the next steps
        taken.append(await positions(source, len(taken) + 1, len(taken)))
    assert 0 in [position for step in taken for position in step]
    assert door.begun.count(0) == 2
    flat = [position for step in taken for position in step]
    assert len(flat) == len(set(flat))
    await source.close()


async def test_off_policy_begins_no_more_than_the_run_needs():
    door = Door()
    config = configure(mode="async", max_steps_off_policy=4, num_batches=2)
    source = OffPolicySource.of(Roller.of(config, door, Busy()), Version(0), {"drawn": 0})
    assert sorted(await positions(source, 1, 0) + await positions(source, 2, 1)) == [0, 1, 2, 3]
    assert sorted(door.begun) == [0, 1, 2, 3]
    assert source.state() == {"drawn": 4, "waiting": []}


async def test_a_resumed_source_begins_with_what_was_waiting():
    door = Door()
    config = configure(mode="async")
    state = {"drawn": 7, "waiting": [3, 5]}
    source = OffPolicySource.of(Roller.of(config, door, Busy()), Version(0), state)
    assert sorted(await positions(source, 1, 0)) == [3, 5]
    await source.close()


async def test_an_abandoned_off_policy_step_gives_its_problems_back():
    door = Door(1, 2, 3)
    config = configure(mode="async", max_steps_off_policy=2)
    source = OffPolicySource.of(Roller.of(config, door, Busy()), Version(0), {"drawn": 0})
    groups = source.groups(1, Version(0), lambda: None)
    assert (await anext(groups)).position == 0
    await groups.aclose()
    assert 0 in source.state()["waiting"]
    await source.close()


def test_busy_counts_time_in_which_anything_is_going_on():
    now = 0.0
    busy = Busy(lambda: now)
    busy.begin()
    now = 1.0
    busy.begin()
    now = 3.0
    busy.end()
    assert busy.take() == 3.0
    now = 4.0
    busy.end()
    now = 9.0
    assert busy.take() == 1.0
    assert busy.take() == 0.0
