"""The training loop: sample, score, update, record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from tinsmith.chat.render import Renderer
from tinsmith.records.writer import RunWriter
from tinsmith.rl.advantages import ESTIMATORS, advantages_of
from tinsmith.rl.config import TrainConfig
from tinsmith.rl.datums import to_datums
from tinsmith.rl.evaluate import evaluate
from tinsmith.rl.metrics import eval_metrics, group_metrics, rollout_metrics
from tinsmith.rl.model import TrainedModel
from tinsmith.rl.policy import derive_seed
from tinsmith.rl.resume import Start
from tinsmith.rl.rollouts import refuse_all_failed, roll_batch
from tinsmith.rl.transcripts import to_records
from tinsmith.rl.types import Metrics, Policy, ProblemSource, TrajectoryGroup
from tinsmith.rl.waiting import timed, unless


@dataclass(frozen=True)
class TrainResult:
    steps: int
    sampler_path: str | None
    finished: bool  # False: asked to stop before the last step


@dataclass(frozen=True)
class Loop:
    """What a training run is made of. `report` hears every line of metrics as it is recorded."""

    config: TrainConfig
    problems: ProblemSource
    held_out: ProblemSource
    model: TrainedModel
    renderer: Renderer
    run: RunWriter
    stop: asyncio.Event
    report: Callable[[int, Metrics], None]

    async def train(self, start: Start) -> TrainResult:
        """Train to the last step or until asked to stop; what was learnt is saved either way."""
        config, step, saved, sampler_path = self.config, start.step, start.step, start.sampler_path
        policy = await self.model.publish(step)
        if step == 0 and config.eval_size:
            evaluation = await self._evaluate(0, policy)
            if evaluation is None:
                return TrainResult(0, None, finished=False)
            self._record(0, evaluation)
        while step < config.num_batches and not self.stop.is_set():
            values = await self._step(step + 1, policy)
            if values is None:
                break  # the abandoned step leaves no trace and is done again on resume
            step += 1
            policy = await timed("time/publish", self.model.publish(step), values)
            values["time/step"] += values["time/publish"]
            if step == config.num_batches and config.eval_size:
                values |= await self._evaluate(step, policy) or {}
            due = config.save_every > 0 and step % config.save_every == 0
            if due or step == config.num_batches:
                sampler_path, saved = await self._save(step, values), step
            else:
                self._record(step, values)
        if step > saved:
            sampler_path = await self._save(step, None)
        return TrainResult(step, sampler_path, finished=step == config.num_batches)

    async def _step(self, step: int, policy: Policy) -> Metrics | None:
        """Sample, score and update once; None when asked to stop before the update."""
        began = time.monotonic()
        values: Metrics = {"lr": self.config.learning_rate}
        sampling = unless(self.stop, self._sample(step, policy))
        groups_P = await timed("time/sample", sampling, values)
        if groups_P is None:
            return None
        refuse_all_failed(groups_P)
        estimator = ESTIMATORS[self.config.adv_estimator]
        advantages_P = [advantages_of(group, estimator) for group in groups_P]
        values |= rollout_metrics(groups_P) | group_metrics(groups_P, advantages_P)
        said = sum(t.action_tokens for group in groups_P for t in group.trajectories_G)
        values["time/sampled_tokens_per_second"] = said / values["time/sample"]
        self.run.progress(step, "train")
        # Groups whose rewards are all equal have no advantages; without any other there is no update.
        if datums := to_datums(groups_P, advantages_P):
            values |= await timed("time/train", self.model.update(datums), values)
            passed = sum(datum.model_input.length for datum in datums)
            values["time/trained_tokens_per_second"] = passed / values["time/train"]
        values |= self.problems.observe(groups_P)
        self.run.rollouts(
            to_records(groups_P, advantages_P, self.renderer, step, "train", policy.version)
        )
        values["time/step"] = time.monotonic() - began
        return values

    async def _sample(self, step: int, policy: Policy) -> list[TrajectoryGroup]:
        config = self.config
        return await roll_batch(
            self.problems.batch(step, config.batch_size),
            policy,
            config.group_size,
            config.env.limits(),
            seed=derive_seed(config.seed, "train", step),
            on_done=lambda done, total: self.run.progress(step, "sample", done, total),
        )

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
        self.run.rollouts(to_records(groups_P, None, self.renderer, step, "eval", policy.version))
        return values | eval_metrics(groups_P)

    async def _save(self, step: int, values: Metrics | None) -> str:
        """Save a checkpoint; the step's line, when not yet written, comes before the checkpoint's."""
        self.run.progress(step, "save")
        if values is None:
            saved = await self.model.save(step)
        else:
            saved = await timed("time/save", self.model.save(step), values)
            self._record(step, values)
        self.run.checkpoint(step, saved.state_path, saved.sampler_path, self.problems.state())
        return saved.sampler_path

    def _record(self, step: int, values: Metrics) -> None:
        self.run.metrics(step, values)
        self.report(step, values)
