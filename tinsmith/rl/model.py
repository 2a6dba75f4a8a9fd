"""The model being trained, behind its Tinker client: update it, publish its weights, save it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinsmith.errors import ServiceError
from tinsmith.rl.config import TrainConfig
from tinsmith.rl.failures import explain
from tinsmith.rl.metrics import update_metrics
from tinsmith.rl.policy import SamplerPolicy
from tinsmith.rl.types import Metrics
from tinsmith.rl.waiting import in_thread

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class SavedModel:
    state_path: str  # weights and optimizer: training goes on from here
    sampler_path: str  # weights alone: for sampling


class TrainedModel:
    def __init__(self, client: tinker.TrainingClient, config: TrainConfig) -> None:
        self._client = client
        self._config = config

    async def publish(self, version: int) -> SamplerPolicy:
        """A policy with the weights as they are now; later updates do not change it."""
        import tinker

        try:
            # In a thread: the SDK's asynchronous form of this call blocks the event loop.
            sampler = await in_thread(self._client.save_weights_and_get_sampling_client)
        except (tinker.TinkerError, ValueError) as error:
            raise ServiceError(
                f"the weights of step {version} could not be made ready for sampling: {explain(error)}"
            ) from error
        return SamplerPolicy(sampler, version=version, temperature=self._config.temperature)

    async def update(self, datums: Sequence[tinker.Datum]) -> Metrics:
        """One optimizer step. A pass or step that fails raises ServiceError, which stops the run."""
        import tinker

        optim = self._config.optim
        adam = tinker.AdamParams(
            learning_rate=self._config.learning_rate,
            beta1=optim.beta1,
            beta2=optim.beta2,
            eps=optim.eps,
        )
        try:
            # Both are on their way before either is awaited, so the service never waits for us.
            passing = await self._client.forward_backward_async(list(datums), self._config.loss_fn)
            stepping = await self._client.optim_step_async(adam)
            passed, stepped = await asyncio.gather(passing.result_async(), stepping.result_async())
        except (tinker.TinkerError, ValueError) as error:
            raise ServiceError(
                f"the update failed and training stops: {explain(error)} "
                "The same command with the same log_path goes on from the last checkpoint."
            ) from error
        return update_metrics(datums, passed, stepped)

    async def save(self, step: int) -> SavedModel:
        """Save weights and optimizer, and the weights alone, under the step's number."""
        import tinker

        name = f"{step:06d}"
        try:
            saving = await self._client.save_state_async(name)
            exporting = await self._client.save_weights_for_sampler_async(name)
            saved, exported = await asyncio.gather(saving.result_async(), exporting.result_async())
        except (tinker.TinkerError, ValueError) as error:
            raise ServiceError(
                f"the checkpoint of step {step} was not saved: {explain(error)}"
            ) from error
        return SavedModel(saved.path, exported.path)
