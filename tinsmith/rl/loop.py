"""The training loop: sample, score, update, record. The mode decides how far these overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tinsmith.chat.render import Renderer
from tinsmith.records.reader import RunReader
from tinsmith.records.rollout import RolloutRecord, Split
from tinsmith.records.writer import RunWriter
from tinsmith.rl.checkpoints import Checkpoints
from tinsmith.rl.config import TrainConfig
from tinsmith.rl.evaluate import eval_metrics, evaluate
from tinsmith.rl.model import TrainedModel
from tinsmith.rl.resume import Start
from tinsmith.rl.rollouts import refuse_all_failed
from tinsmith.rl.sampling import GroupSource, OffPolicySource, OnPolicySource, Roller
from tinsmith.rl.step import Batch, Stepper
from tinsmith.rl.transcripts import to_records
from tinsmith.rl.types import Metrics, Policy, ProblemSource
from tinsmith.rl.waiting import Busy, timed, unless

SCORE = "eval/reward"  # what tells the best checkpoint


@dataclass(frozen=True)
class TrainResult:
    steps: int
    sampler_path: str | None
    finished: bool  # False: asked to stop before the last step


class Report(Protocol):
    """Hears every line of metrics and every rollout as it is recorded."""

    def __call__(self, step: int, values: Metrics, /) -> None: ...
    def rollouts(self, step: int, records: Sequence[RolloutRecord]) -> None: ...


@dataclass(frozen=True)
class Loop:
    """What a training run is made of."""

    config: TrainConfig
    problems: ProblemSource
    held_out: ProblemSource
    model: TrainedModel
    checkpoints: Checkpoints
    renderer: Renderer
    run: RunWriter
    stop: asyncio.Event
    report: Report

    async def train(self, start: Start) -> TrainResult:
        """Train to the last step or until asked to stop; what was learnt is saved either way."""
        config, step, saved, sampler_path = self.config, start.step, start.step, start.sampler_path
        policy: Policy = await self.model.publish(step)
        if step == 0 and config.eval_size:
            evaluation = await self._evaluate(0, policy)
            if evaluation is None:
                return TrainResult(0, None, finished=False)
            self._record(0, evaluation)
        stepper = self._stepper(policy, start)
        try:
            while step < config.num_batches and not self.stop.is_set():
                done = await stepper.step(step + 1, policy)
                if done is None:
                    break  # the abandoned step leaves no trace and is done again on resume
                step += 1
                values, policy = done
                if self._evaluation_due(step):
                    values |= await self._evaluate(step, policy) or {}
                if self._save_due(step, values):
                    sampler_path, saved = await self._save(step, values, stepper.source), step
                else:
                    self._record(step, values)
            if step > saved:
                sampler_path = await self._save(step, None, stepper.source)
        finally:
            await stepper.source.close()
        return TrainResult(step, sampler_path, finished=step == config.num_batches)

    def _stepper(self, policy: Policy, start: Start) -> Stepper:
        sampling = Busy()
        roller = Roller.of(self.config, self.problems, sampling)
        state = {"drawn": start.step * self.config.batch_size, **start.loop}
        if self.config.mode == "async":
            source: GroupSource = OffPolicySource.of(roller, policy, state)
        else:
            source = OnPolicySource(roller, state)
        return Stepper(
            self.config,
            self.problems,
            self.model,
            source,
            self.run,
            self.stop,
            lambda step, batch: self._record_rollouts(step, batch, "train"),
            sampling,
        )

    def _evaluation_due(self, step: int) -> bool:
        every, last = self.config.eval_every, self.config.num_batches
        return self.config.eval_size > 0 and (step == last or (every > 0 and step % every == 0))

    def _save_due(self, step: int, values: Metrics) -> bool:
        every = self.config.save_every
        regular = step == self.config.num_batches or (every > 0 and step % every == 0)
        return regular or self._is_best(values.get(SCORE))

    def _is_best(self, score: float | None) -> bool:
        """Whether a held-out result beats all before, the untrained model's too."""
        lines = RunReader(self.run.layout.directory).metrics()
        return score is not None and all(score > line[SCORE] for line in lines if SCORE in line)

    async def _evaluate(self, step: int, policy: Policy) -> Metrics | None:
        """Try the held-out problems and record their rollouts; None when asked to stop meanwhile."""
        values: Metrics = {}
        trying = evaluate(
            self.config,
            self.held_out,
            policy,
            on_done=lambda done, total: self.run.progress(step, "evaluate", done, total),
        )
        groups_P = await timed("time/eval", unless(self.stop, trying), values)
        if groups_P is None:
            return None
        refuse_all_failed(groups_P)
        self._record_rollouts(step, Batch(groups_P, []), "eval")
        return values | eval_metrics(groups_P)

    async def _save(self, step: int, values: Metrics | None, source: GroupSource) -> str:
        """Save a checkpoint; the step's line, when not yet written, comes before the checkpoint's."""
        self.run.progress(step, "save")
        saving = self.checkpoints.save(step)
        if values is None:
            saved = await saving
        else:
            saved = await timed("time/save", saving, values)
            self._record(step, values)
        score = values.get(SCORE) if values else None
        await self.checkpoints.record(
            step, saved, self.problems.state(), loop=source.state(), score=score
        )
        return saved.sampler_path

    def _record(self, step: int, values: Metrics) -> None:
        self.run.metrics(step, values)
        self.report(step, values)

    def _record_rollouts(self, step: int, batch: Batch, split: Split) -> None:
        records = to_records(batch.groups_P, batch.advantages_P or None, self.renderer, step, split)
        self.run.rollouts(records)
        self.report.rollouts(step, records)
