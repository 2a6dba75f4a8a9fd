"""The model being trained, behind its Tinker client: update it and publish its weights."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from tinsmith.rl.config import TrainConfig
from tinsmith.rl.failures import sdk_failures
from tinsmith.rl.kl import BasePenalty
from tinsmith.rl.policy import SamplerPolicy
from tinsmith.rl.schedule import learning_rate
from tinsmith.rl.update import Update
from tinsmith.rl.waiting import Busy, in_thread

if TYPE_CHECKING:
    import tinker


class TrainedModel:
    def __init__(
        self, client: tinker.TrainingClient, config: TrainConfig, penalty: BasePenalty | None = None
    ) -> None:
        self._client = client
        self._config = config
        self._penalty = penalty

    async def publish(self, version: int, busy: Busy | None = None) -> SamplerPolicy:
        """A policy with the weights as all updates sent so far leave them; later ones do not change it."""
        failed = f"the weights of step {version} could not be made ready for sampling"
        with sdk_failures(failed), busy.working() if busy else nullcontext():
            # In a thread: the SDK's asynchronous form of this call blocks the event loop.
            sampler = await in_thread(self._client.save_weights_and_get_sampling_client)
        return SamplerPolicy(sampler, version=version, temperature=self._config.temperature)

    def begin_update(self, step: int, busy: Busy) -> Update:
        """The update of a step, which begins with the weights of the step before."""
        config = self._config
        return Update(
            self._client,
            config,
            version=step - 1,
            lr=learning_rate(config.learning_rate, config.optim, step, config.num_batches),
            penalty=self._penalty,
            busy=busy,
        )
