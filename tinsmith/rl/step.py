"""One training step: groups are taken as they come, passed through the model, and the weights are changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from tinsmith.records.writer import RunWriter
from tinsmith.rl.advantages import ESTIMATORS, advantages_of, is_mixed
from tinsmith.rl.config import TrainConfig
from tinsmith.rl.datums import TrainingSequence, to_sequences
from tinsmith.rl.metrics import group_metrics, rollout_metrics, waiting_metrics
from tinsmith.rl.model import TrainedModel
from tinsmith.rl.rollouts import refuse_all_failed
from tinsmith.rl.sampling import GroupSource, all_at_once
from tinsmith.rl.types import Metrics, Policy, ProblemSource, TrajectoryGroup
from tinsmith.rl.update import Update
from tinsmith.rl.waiting import Busy, unless


@dataclass(frozen=True)
class Batch:
    """What a step was computed from."""

    groups_P: list[TrajectoryGroup]
    advantages_P: list[list[float | None]]


@dataclass(frozen=True)
class Stepper:
    """Takes training steps. `keep` is handed every batch, to be recorded while the service computes."""

    config: TrainConfig
    problems: ProblemSource
    model: TrainedModel
    source: GroupSource
    run: RunWriter
    stop: asyncio.Event
    keep: Callable[[int, Batch], None]
    sampling: Busy  # rollouts in progress
    training: Busy = field(default_factory=Busy)  # an update in progress

    async def step(self, step: int, policy: Policy) -> tuple[Metrics, Policy] | None:
        """Sample, score and update once: what it was like, and the new policy.

        None when asked to stop before the weights were changed.
        """
        began = time.monotonic()
        self.sampling.take()
        self.training.take()
        update = self.model.begin_update(step, self.training)
        try:
            batch = await self._sample_and_pass(step, policy, update)
            if batch is None:
                return None
            refuse_all_failed(batch.groups_P)
            values, new_policy = await self._finish(step, batch, update)
        finally:
            await update.abandon()
        values |= self.problems.observe(batch.groups_P)
        seconds = time.monotonic() - began
        values |= waiting_metrics(seconds, self.sampling.take(), self.training.take(), values)
        return values, new_policy

    async def _finish(self, step: int, batch: Batch, update: Update) -> tuple[Metrics, Policy]:
        """Ask for the new weights at once; while the service computes, what is known is written down."""
        publishing = asyncio.ensure_future(self.model.publish(step, self.training))
        try:
            values = rollout_metrics(batch.groups_P)
            values |= group_metrics(batch.groups_P, batch.advantages_P) | self.source.metrics()
            self.keep(step, batch)
            values |= {"lr": update.lr} | await update.result()
            return values, await publishing
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)

    async def _sample_and_pass(self, step: int, policy: Policy, update: Update) -> Batch | None:
        """Take the step's groups as they come, and send passes and optimizer steps when they are due.

        mode=sync hands the groups over together. None when asked to stop; but once an optimizer step is
        on its way the batch is trained on to its end, since half a batch could not be resumed.
        """
        config = self.config
        batch = Batch([], [])
        estimator = ESTIMATORS[config.adv_estimator](config.adv_beta)
        due = passes_due(config)
        counted, waiting = 0, list[TrainingSequence]()
        groups = self.source.groups(step, policy, self._progress(step))
        if config.mode == "sync":
            groups = all_at_once(groups)
        async with aclosing(groups):
            while True:
                coming = anext(groups, None)
                group = await (coming if update.stepped else unless(self.stop, coming))
                if group is None:
                    break
                advantages_G = advantages_of(
                    group, estimator, keep_alike=config.no_signal == "keep"
                )
                batch.groups_P.append(group)
                batch.advantages_P.append(advantages_G)
                waiting += to_sequences(group, advantages_G)
                if config.no_signal == "resample" and not is_mixed(group.rewards_G()):
                    continue
                counted += 1
                if counted in due:
                    self.run.progress(step, "train")
                    await update.add(waiting)
                    waiting = []
                    if due[counted]:
                        await update.step()
            if self.stop.is_set() and not update.stepped:
                return None
        await update.add(waiting)
        await update.step()
        return batch

    def _progress(self, step: int) -> Callable[[], None]:
        """Counts the groups of a step that are done, for the views."""
        done, size = 0, self.config.group_size
        total = self.config.batch_size * size
        self.run.progress(step, "sample", 0, total)

        def on_group() -> None:
            nonlocal done
            done += size
            self.run.progress(step, "sample", done, max(total, done))

        return on_group


def passes_due(config: TrainConfig) -> dict[int, bool]:
    """After how many groups of a batch a pass is due, and whether an optimizer step is due with it."""
    passes = config.num_substeps * config.num_minibatches
    return {
        number * config.batch_size // passes: number % config.num_minibatches == 0
        for number in range(1, passes + 1)
    }
