"""The model being taught, behind its Tinker client: update it on sequences, score others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tinsmith.rl.failures import sdk_failures
from tinsmith.rl.schedule import learning_rate
from tinsmith.rl.types import Metrics
from tinsmith.rl.update import adam_params, grad_norm
from tinsmith.sft.config import SftConfig
from tinsmith.sft.data import TokenSequence, logprobs_of

if TYPE_CHECKING:
    import tinker

LOSS = "cross_entropy"


@dataclass(frozen=True)
class Score:
    """How surprising the learnt tokens of some sequences were: the sum, and over how many."""

    nll: float
    tokens: int


class Update:
    """A forward_backward and an optim_step on their way."""

    def __init__(
        self,
        sequences: Sequence[TokenSequence],
        lr: float,
        passing: tinker.APIFuture[tinker.ForwardBackwardOutput],
        stepping: tinker.APIFuture[tinker.OptimStepResponse],
    ) -> None:
        self._sequences = sequences
        self._lr = lr
        self._passed = asyncio.ensure_future(passing.result_async())
        self._stepped = asyncio.ensure_future(stepping.result_async())

    async def result(self) -> Metrics:
        """Await both; what the update was like."""
        try:
            with sdk_failures("the update failed and training stops"):
                passed, stepped = await asyncio.gather(self._passed, self._stepped)
        finally:
            await self.drop()
        scores = _scores(self._sequences, passed)
        tokens = sum(score.tokens for score in scores)
        values: Metrics = {
            "lr": self._lr,
            "nll": sum(score.nll for score in scores) / tokens,
            "trained_tokens": tokens,
        }
        if (norm := grad_norm(stepped)) is not None:
            values["grad_norm"] = norm
        return values

    async def drop(self) -> None:
        """Wait no longer for the answers."""
        self._passed.cancel()
        self._stepped.cancel()
        await asyncio.gather(self._passed, self._stepped, return_exceptions=True)


class TaughtModel:
    def __init__(self, client: tinker.TrainingClient, config: SftConfig, total_steps: int) -> None:
        self._client = client
        self._config = config
        self._total_steps = total_steps

    async def send_update(self, step: int, sequences: Sequence[TokenSequence]) -> Update:
        """Send the update of a step without waiting for it; the service keeps the order.

        Gradients are sums: the weights are 1 / learnt tokens of the batch, so that a step's size
        does not depend on how much the batch's assistants say.
        """
        optim = self._config.optim
        lr = learning_rate(self._config.learning_rate, optim, step, self._total_steps)
        weight = 1.0 / sum(sequence.trained for sequence in sequences)
        datums = [sequence.datum(weight) for sequence in sequences]
        with sdk_failures("the update could not be sent and training stops"):
            passing = await self._client.forward_backward_async(datums, LOSS)
            stepping = await self._client.optim_step_async(adam_params(optim, lr))
        return Update(sequences, lr, passing, stepping)

    async def scores(self, sequences: Sequence[TokenSequence]) -> list[Score]:
        """Of each sequence, with the weights as they are now; nothing is learnt."""
        with sdk_failures("the held-out conversations could not be scored"):
            scoring = await self._client.forward_async([s.datum(1.0) for s in sequences], LOSS)
            return _scores(sequences, await scoring.result_async())


def _scores(
    sequences: Sequence[TokenSequence], output: tinker.ForwardBackwardOutput
) -> list[Score]:
    scores: list[Score] = []
    for sequence, logprobs_T in zip(sequences, logprobs_of(output), strict=True):
        said = logprobs_T[sequence.said_T[1:]]
        scores.append(Score(-float(said.sum(dtype=np.float64)), len(said)))
    return scores
