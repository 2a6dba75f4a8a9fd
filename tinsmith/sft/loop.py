"""The loop of a supervised run: one update is computed while the next is already on its way."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tinsmith.records.files import Json
from tinsmith.records.writer import RunWriter
from tinsmith.rl.checkpoints import Checkpoints
from tinsmith.rl.loop import TrainResult
from tinsmith.rl.resume import Start
from tinsmith.rl.types import Metrics
from tinsmith.rl.waiting import timed, unless
from tinsmith.sft.config import SftConfig
from tinsmith.sft.data import Batches, Example, sequences_of
from tinsmith.sft.model import Score, TaughtModel, Update


@dataclass(frozen=True)
class _Sent:
    """A step whose update is on its way."""

    step: int
    examples: list[Example]
    update: Update


@dataclass(frozen=True)
class SftLoop:
    """What a supervised run is made of. `report` hears every line of metrics as it is recorded."""

    config: SftConfig
    batches: Batches
    held_out: Sequence[Example]
    model: TaughtModel
    checkpoints: Checkpoints
    total_steps: int
    data_state: Json  # what a checkpoint says of the data, for the run that goes on from it
    run: RunWriter
    stop: asyncio.Event
    report: Callable[[int, Metrics], None]

    async def train(self, start: Start) -> TrainResult:
        """Train to the last step or until asked to stop; what was learnt is saved either way."""
        step, saved, sampler_path = start.step, start.step, start.sampler_path
        if step == 0 and self.held_out:
            evaluation = await self._evaluate(0)
            if evaluation is None:
                return TrainResult(0, None, finished=False)
            self._record(0, evaluation)
        while step < self.total_steps and not self.stop.is_set():
            step, values = await self._train_until_pause(step)
            if self._evaluates_after(step):
                values |= await self._evaluate(step) or {}
            if self._saves_after(step):
                sampler_path, saved = await self._save(step, values), step
            else:
                self._record(step, values)
        if step > saved:
            sampler_path = await self._save(step, None)
        return TrainResult(step, sampler_path, finished=step == self.total_steps)

    def _evaluates_after(self, step: int) -> bool:
        every = self.config.eval_every
        due = step == self.total_steps or (every > 0 and step % every == 0)
        return due and bool(self.held_out)

    def _saves_after(self, step: int) -> bool:
        every = self.config.save_every
        return step == self.total_steps or (every > 0 and step % every == 0)

    def _pauses_after(self, step: int) -> bool:
        return self._evaluates_after(step) or self._saves_after(step)

    async def _train_until_pause(self, done: int) -> tuple[int, Metrics]:
        """Steps that overlap, up to one after which all must be known: to evaluate, save or stop.

        Each step is sent before the answer to the one before is awaited, so the service never waits
        for us. The last step and its metrics come back, those between are recorded.
        """
        began = time.monotonic()
        waiting = [await self._send(done + 1)]
        try:
            while not (self._pauses_after(waiting[-1].step) or self.stop.is_set()):
                waiting.append(await self._send(waiting[-1].step + 1))
                values = await self._answer(waiting[0], began)
                began = time.monotonic()
                self._record(waiting.pop(0).step, values)
            return waiting[0].step, await self._answer(waiting[0], began)
        finally:
            for sent in waiting:
                await sent.update.drop()

    async def _send(self, step: int) -> _Sent:
        examples = self.batches.batch(step)
        update = await self.model.send_update(step, sequences_of(examples))
        return _Sent(step, examples, update)

    async def _answer(self, sent: _Sent, began: float) -> Metrics:
        """Await a step's update. Its time counts from the answer before: only then was it alone."""
        self.run.progress(sent.step, "train")
        values = await sent.update.result()
        seconds = max(time.monotonic() - began, 1e-9)
        passed = sum(len(s.tokens_T) - 1 for s in sequences_of(sent.examples))
        return values | {
            "conversations": len(sent.examples),
            "epoch": sent.step / self.batches.per_epoch,
            "time/step": seconds,
            "time/train": seconds,
            "time/trained_tokens_per_second": passed / seconds,
        }

    async def _evaluate(self, step: int) -> Metrics | None:
        """Score the held-out conversations; None when asked to stop meanwhile."""
        values: Metrics = {}
        scores = await timed("time/eval", unless(self.stop, self._score_held_out(step)), values)
        return None if scores is None else values | held_out_metrics(scores)

    async def _score_held_out(self, step: int) -> list[Score]:
        """One score a conversation."""
        total = len(self.held_out)
        scores: list[Score] = []
        for at in range(0, total, self.config.batch_size):
            self.run.progress(step, "evaluate", at, total)
            examples = self.held_out[at : at + self.config.batch_size]
            of_sequences = iter(await self.model.scores(sequences_of(examples)))
            for example in examples:
                own = [next(of_sequences) for _ in example.sequences]
                scores.append(Score(sum(s.nll for s in own), sum(s.tokens for s in own)))
        return scores

    async def _save(self, step: int, values: Metrics | None) -> str:
        """Save a checkpoint; the step's line, when not yet written, comes before the checkpoint's."""
        self.run.progress(step, "save")
        if values is None:
            saved = await self.checkpoints.save(step)
        else:
            saved = await timed("time/save", self.checkpoints.save(step), values)
            self._record(step, values)
        # The best checkpoint is the one with the highest score.
        score = -values["eval/nll"] if values and "eval/nll" in values else None
        await self.checkpoints.record(step, saved, self.data_state, loop={}, score=score)
        return saved.sampler_path

    def _record(self, step: int, values: Metrics) -> None:
        self.run.metrics(step, values)
        self.report(step, values)


def held_out_metrics(scores: Sequence[Score]) -> Metrics:
    """Mean surprise of a held-out token, with its standard error over conversations."""
    nll = np.array([score.nll for score in scores])
    tokens = np.array([score.tokens for score in scores])
    mean = float(nll.sum() / tokens.sum())
    values: Metrics = {"eval/nll": mean, "eval/conversations": len(scores)}
    if len(scores) > 1:
        # Conversations differ in length, so the mean is a ratio of two sums; this is its usual error.
        spread = np.square(nll - mean * tokens).sum() * len(scores) / (len(scores) - 1)
        values["eval/nll_stderr"] = math.sqrt(spread) / float(tokens.sum())
    return values
