"""One batch's update: passes and optimizer steps are sent as their data come, and awaited at the end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tinsmith.rl.config import OptimConfig, TrainConfig
from tinsmith.rl.datums import TrainingSequence
from tinsmith.rl.failures import sdk_failures
from tinsmith.rl.kl import BasePenalty
from tinsmith.rl.losses import LOSSES
from tinsmith.rl.types import Metrics
from tinsmith.rl.waiting import Busy

if TYPE_CHECKING:
    import tinker

GRAD_NORM = "unclipped_grad_l2:mean"
FAILED = "the update failed and training stops"


def adam_params(optim: OptimConfig, lr: float) -> tinker.AdamParams:
    """The settings of one optimizer step as the service takes them."""
    import tinker

    return tinker.AdamParams(
        learning_rate=lr,
        beta1=optim.beta1,
        beta2=optim.beta2,
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        grad_clip_norm=optim.grad_clip,
    )


def grad_norm(stepped: tinker.OptimStepResponse) -> float | None:
    """Length of the gradient before clipping; None when the service does not say."""
    return (stepped.metrics or {}).get(GRAD_NORM)


@dataclass(frozen=True)
class _Pass:
    """A forward_backward on its way."""

    sequences_D: list[TrainingSequence]
    answer: asyncio.Task[tinker.ForwardBackwardOutput]


class Update:
    """Passes add to the gradient; a step uses it up. A failure of either raises ServiceError."""

    def __init__(
        self,
        client: tinker.TrainingClient,
        config: TrainConfig,
        *,
        version: int,
        lr: float,
        penalty: BasePenalty | None,
        busy: Busy,
    ) -> None:
        self._client = client
        self._config = config
        self._version = version
        self.lr = lr
        self._penalty = penalty
        self._busy = busy
        self._passes: list[_Pass] = []
        self._steps: list[asyncio.Task[tinker.OptimStepResponse]] = []
        self._waiting_passes = 0  # passes whose gradient no step has used
        self._base_ratios: list[NDArray[np.float32]] = []

    @property
    def stepped(self) -> bool:
        """Whether the weights are no longer those the batch began with."""
        return bool(self._steps)

    async def add(self, sequences_D: Sequence[TrainingSequence]) -> None:
        """Send a pass over these sequences; none when there are none."""
        if not sequences_D:
            return
        for task in self._tasks():
            if task.done():
                with sdk_failures(FAILED):
                    task.result()  # a failed pass is heard of before the next one is sent
        with self._busy.working(), sdk_failures(FAILED):
            ready = list(sequences_D)
            if self._penalty is not None:
                ready, ratios = await self._penalty.apply(ready)
                self._base_ratios += ratios
            sent = await self._client.forward_backward_async(
                [sequence.datum() for sequence in ready],
                self._config.loss_fn,
                LOSSES[self._config.loss_fn](self._config),
            )
        self._passes.append(_Pass(ready, self._awaited(sent)))
        self._waiting_passes += 1

    async def step(self) -> None:
        """Send an optimizer step for the passes since the last one; nothing when there are none."""
        if self._waiting_passes == 0:
            return
        self._waiting_passes = 0
        with self._busy.working(), sdk_failures(FAILED):
            sent = await self._client.optim_step_async(adam_params(self._config.optim, self.lr))
        self._steps.append(self._awaited(sent))

    async def result(self) -> Metrics:
        """Await everything that was sent; what the update was like."""
        with sdk_failures(FAILED):
            await asyncio.gather(*self._tasks())
        values = self._token_metrics() if self._passes else {}
        values["updates"] = len(self._steps)
        norms = [norm for task in self._steps if (norm := grad_norm(task.result())) is not None]
        if norms:
            values["grad_norm"] = float(np.mean(norms))
        if self._base_ratios:
            values["kl_base"] = float(np.concatenate(self._base_ratios).mean(dtype=np.float64))
        return values

    async def abandon(self) -> None:
        """Wait for nothing any more; to be called at the end, however it comes."""
        for task in self._tasks():
            task.cancel()
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task]:
        return [*(p.answer for p in self._passes), *self._steps]

    def _awaited(self, sent: tinker.APIFuture) -> asyncio.Task:
        """Wait for an answer in the background, so that the work counts as going on until it is there."""
        self._busy.begin()
        task = asyncio.ensure_future(sent.result_async())
        task.add_done_callback(lambda _: self._busy.end())
        return task

    def _token_metrics(self) -> Metrics:
        """Of the sampled tokens: trainer beside sampler."""
        sequences_D = [s for p in self._passes for s in p.sequences_D]
        outputs_D = [o for p in self._passes for o in p.answer.result().loss_fn_outputs]
        masks_D = [s.sampled_T[1:] for s in sequences_D]
        trainer = np.concatenate(
            [o["logprobs"].to_numpy()[m] for o, m in zip(outputs_D, masks_D, strict=True)]
        )
        sampler = np.concatenate([s.logprobs_T[s.sampled_T] for s in sequences_D])
        gap = trainer.astype(np.float64) - sampler
        ages = self._version - np.concatenate([s.versions_T[s.sampled_T] for s in sequences_D])
        losses = [p.answer.result().metrics.get("loss:sum", math.nan) for p in self._passes]
        count = len(gap)
        values: Metrics = {"trained_tokens": count, "loss": sum(losses) / max(count, 1)}
        values["trained_sequence_tokens"] = sum(len(s.tokens_T) - 1 for s in sequences_D)
        if count == 0:
            return values
        ratio = np.exp(gap)
        values |= {
            # exp(d) - 1 - d is positive whatever d is, and its mean under the sampler is the divergence.
            "kl": float(np.mean(np.expm1(gap) - gap)),
            "ratio": float(ratio.mean()),
            "staleness": float(ages.mean()),
            "staleness_max": float(ages.max()),
        }
        if self._config.clips is not None:
            low, high = self._config.clips
            values["clipped"] = float(np.mean((ratio < low) | (ratio > high)))
        return values
