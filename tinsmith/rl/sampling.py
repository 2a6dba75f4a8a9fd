"""Where a step's groups come from: sampled by its own weights and in order, or all the time by the latest weights."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from tinsmith.rl.advantages import is_mixed
from tinsmith.rl.config import TrainConfig
from tinsmith.rl.policy import LatestPolicy, derive_seed
from tinsmith.rl.rollouts import roll_group
from tinsmith.rl.types import Json, Metrics, Policy, ProblemSource, TrajectoryGroup
from tinsmith.rl.waiting import Busy

OnGroup: TypeAlias = Callable[[], None]  # hears of every group that is done


@dataclass(frozen=True)
class Roller:
    """Rolls out the problem at a position of the source; the position decides the seed."""

    config: TrainConfig
    problems: ProblemSource
    busy: Busy
    slots: asyncio.Semaphore | None = None

    @classmethod
    def of(cls, config: TrainConfig, problems: ProblemSource, busy: Busy) -> Roller:
        groups = config.rollout.concurrent // config.group_size
        slots = asyncio.Semaphore(max(groups, 1)) if config.rollout.concurrent else None
        return cls(config, problems, busy, slots)

    async def roll(self, position: int, policy: Policy, tries: int = 0) -> TrajectoryGroup:
        seed = derive_seed(self.config.seed, "train", position, *([tries] if tries else []))
        async with self.slots or nullcontext():
            with self.busy.working():
                builder = self.problems.problem(position)
                limits, size = self.config.limits(), self.config.group_size
                group = await roll_group(builder, policy, size, limits, seed=seed)
        return replace(group, position=position)


class GroupSource(Protocol):
    """Gives every step its groups. Its state goes into checkpoints."""

    def groups(
        self, step: int, policy: Policy, on_group: OnGroup
    ) -> AsyncGenerator[TrajectoryGroup]: ...
    def metrics(self) -> Metrics: ...  # of the last step
    def state(self) -> Json: ...
    async def close(self) -> None: ...


class OnPolicySource:
    """The groups of a step in the order of their problems, all sampled by the step's own weights.

    With no_signal=resample a further problem is begun for every group without signal. Which problems
    come depends on the order of the problems alone, never on which rollout was quicker.
    """

    def __init__(self, roller: Roller, state: Json) -> None:
        self._roller = roller
        self._drawn = int(state["drawn"])
        self._resampled = 0

    async def groups(
        self, step: int, policy: Policy, on_group: OnGroup
    ) -> AsyncGenerator[TrajectoryGroup]:
        config = self._roller.config
        rolling: deque[asyncio.Task[TrajectoryGroup]] = deque()
        drawn = self._drawn

        def begin() -> None:
            nonlocal drawn
            task = asyncio.ensure_future(self._roller.roll(drawn, policy))
            task.add_done_callback(lambda _: on_group())
            rolling.append(task)
            drawn += 1

        for _ in range(config.batch_size):
            begin()
        more = int(config.max_resample * config.batch_size) if config.no_signal == "resample" else 0
        resampled = 0
        try:
            while rolling:
                group = await rolling[0]
                rolling.popleft()
                if resampled < more and not is_mixed(group.rewards_G()):
                    resampled += 1
                    begin()
                yield group
        finally:
            await _cancel(*rolling)
        # Not before: a step that is abandoned is done again, with the same problems.
        self._drawn, self._resampled = drawn, resampled

    def metrics(self) -> Metrics:
        values = {"epoch": self._drawn / len(self._roller.problems)}
        if self._roller.config.no_signal == "resample":
            values["groups/resampled"] = self._resampled
        return values

    def state(self) -> Json:
        return {"drawn": self._drawn}

    async def close(self) -> None:
        return None


@dataclass
class OffPolicySource:
    """Groups as they finish, sampled all the time by the latest weights of the moment.

    At most `max_steps_off_policy` batches are sampled ahead, so that groups taken in the order they
    were begun are never too old. One that took so long that it is too old all the same is thrown away
    and its problem comes again; so every problem is trained on, and no token is older than allowed.
    """

    roller: Roller
    latest: LatestPolicy
    drawn: int
    again: deque[int] = field(default_factory=deque[int])  # positions to sample before new ones
    tries: dict[int, int] = field(default_factory=dict[int, int])  # of positions that come again
    rolling: dict[int, asyncio.Task[TrajectoryGroup]] = field(
        default_factory=dict[int, asyncio.Task[TrajectoryGroup]]
    )  # by position, until the trainer takes it
    finished: asyncio.Queue[int] = field(default_factory=asyncio.Queue[int])
    stale: int = 0
    resampled: int = 0

    @classmethod
    def of(cls, roller: Roller, policy: Policy, state: Json) -> OffPolicySource:
        waiting = deque(int(position) for position in state.get("waiting", ()))
        return cls(roller, LatestPolicy(policy), int(state["drawn"]), waiting)

    async def groups(
        self, step: int, policy: Policy, on_group: OnGroup
    ) -> AsyncGenerator[TrajectoryGroup]:
        config = self.roller.config
        self.latest.policy = policy
        self.stale = self.resampled = 0
        oldest = step - 1 - config.max_steps_off_policy
        more = int(config.max_resample * config.batch_size) if config.no_signal == "resample" else 0
        counted, taken = 0, list[int]()
        try:
            while counted < config.batch_size:
                self._begin((config.num_batches - step + 1) * config.batch_size - counted)
                position = await self.finished.get()
                group = self.rolling.pop(position).result()
                taken.append(position)
                if group.version < oldest:
                    self.stale += 1
                    self._put_back(taken.pop())
                    continue
                on_group()
                if self.resampled < more and not is_mixed(group.rewards_G()):
                    self.resampled += 1
                else:
                    counted += 1
                yield group
        except (GeneratorExit, asyncio.CancelledError):
            for position in taken:  # the step is abandoned and done again
                self._put_back(position)
            raise
        for position in taken:
            self.tries.pop(position, None)
        self._begin(
            (config.num_batches - step) * config.batch_size
        )  # sample while the step is trained

    def _put_back(self, position: int) -> None:
        self.again.append(position)
        self.tries[position] = self.tries.get(position, 0) + 1

    def _begin(self, needed: int) -> None:
        """Keep as many groups in progress or waiting as may be, and no more than the run still needs."""
        config = self.roller.config
        room = min(config.max_steps_off_policy * config.batch_size, needed)
        while len(self.rolling) < room:
            if self.again:
                position = self.again.popleft()
            else:
                position, self.drawn = self.drawn, self.drawn + 1
            rolling = self.roller.roll(position, self.latest, self.tries.get(position, 0))
            task = asyncio.ensure_future(rolling)
            task.add_done_callback(lambda _, position=position: self.finished.put_nowait(position))
            self.rolling[position] = task

    def metrics(self) -> Metrics:
        values: Metrics = {
            "epoch": self.drawn / len(self.roller.problems),
            "groups/stale": self.stale,
        }
        if self.roller.config.no_signal == "resample":
            values["groups/resampled"] = self.resampled
        return values

    def state(self) -> Json:
        return {"drawn": self.drawn, "waiting": sorted([*self.again, *self.rolling])}

    async def close(self) -> None:
        await _cancel(*self.rolling.values())


async def all_at_once(groups: AsyncGenerator[TrajectoryGroup]) -> AsyncGenerator[TrajectoryGroup]:
    """The same groups, none before the last is there."""
    for group in [group async for group in groups]:
        yield group


async def _cancel(*tasks: asyncio.Task[TrajectoryGroup]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
