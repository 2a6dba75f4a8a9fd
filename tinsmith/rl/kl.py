"""A penalty for leaving the base model: every sampled token's advantage is lowered where the policy is surer of it
than its base was, and raised where it is less sure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tinsmith.rl.datums import TrainingSequence
from tinsmith.rl.failures import sdk_failures

if TYPE_CHECKING:
    import tinker


class BasePenalty:
    """Asks the base model how likely the sampled tokens were and changes their advantages by that."""

    def __init__(self, base: tinker.SamplingClient, coef: float) -> None:
        self._base = base
        self._coef = coef

    async def apply(
        self, sequences_D: Sequence[TrainingSequence]
    ) -> tuple[list[TrainingSequence], list[NDArray[np.float32]]]:
        """The sequences with new advantages, and for each the log ratio of policy and base at its sampled tokens.

        The mean ratio of these sequences is taken off, so that the penalty has no effect on how likely
        sampled tokens are altogether, only on which.
        """
        with sdk_failures("the base model's log-probabilities could not be had (kl_coef)"):
            base_D = await asyncio.gather(*(self._logprobs(s) for s in sequences_D))
        ratios_D = [
            (s.logprobs_T - base)[s.sampled_T] for s, base in zip(sequences_D, base_D, strict=True)
        ]
        mean = float(np.concatenate(ratios_D).mean(dtype=np.float64)) if ratios_D else 0.0
        penalised = [
            s.with_advantages(_penalised(s, ratios, mean, self._coef))
            for s, ratios in zip(sequences_D, ratios_D, strict=True)
        ]
        return penalised, ratios_D

    async def _logprobs(self, sequence: TrainingSequence) -> NDArray[np.float32]:
        import tinker

        prompt = tinker.ModelInput.from_ints(sequence.tokens_T.tolist())
        logprobs = await self._base.compute_logprobs_async(prompt)
        # The first token has none; it is never a sampled one.
        return np.array([0.0 if lp is None else lp for lp in logprobs], dtype=np.float32)


def _penalised(
    sequence: TrainingSequence, ratios: NDArray[np.float32], mean: float, coef: float
) -> NDArray[np.float32]:
    advantages_T = sequence.advantages_T.copy()
    advantages_T[sequence.sampled_T] -= np.float32(coef) * (ratios - np.float32(mean))
    return advantages_T
