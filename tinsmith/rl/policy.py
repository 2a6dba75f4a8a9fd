"""A sampling client as a policy, frozen to one version of the weights."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tinsmith.errors import ServiceError
from tinsmith.rl.types import Action, Observation, Policy

if TYPE_CHECKING:
    import tinker


def derive_seed(*parts: int | str) -> int:
    """A seed that depends on every part and on nothing else, such as the time or the machine."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


class SamplerPolicy:
    """Asks the service; `samples` answers to one observation travel as one request."""

    def __init__(self, client: tinker.SamplingClient, *, version: int, temperature: float) -> None:
        self._client = client
        self._version = version
        self._temperature = temperature

    @property
    def version(self) -> int:
        return self._version

    async def __call__(
        self, observation: Observation, *, max_tokens: int, samples: int, seed: int
    ) -> list[Action]:
        import tinker

        params = tinker.SamplingParams(
            max_tokens=max_tokens,
            temperature=self._temperature,
            seed=seed,
            stop=list(observation.stop) or None,  # type: ignore[arg-type]  # one kind at a time
        )
        prompt = tinker.ModelInput.from_ints(observation.tokens_T)
        response = await self._client.sample_async(prompt, samples, params)
        return [_action(sequence, self._version) for sequence in response.sequences]


class LatestPolicy:
    """Whichever policy was set last: a rollout of several turns may go on with newer weights."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @property
    def version(self) -> int:
        return self.policy.version

    async def __call__(
        self, observation: Observation, *, max_tokens: int, samples: int, seed: int
    ) -> list[Action]:
        return await self.policy(observation, max_tokens=max_tokens, samples=samples, seed=seed)


def _action(sequence: tinker.SampledSequence, version: int) -> Action:
    if sequence.logprobs is None:
        raise ServiceError(
            "the service returned a sample without log-probabilities, which training needs. "
            "Check that the service at base_url is a Tinker service of a recent version."
        )
    return Action(list(sequence.tokens), list(sequence.logprobs), sequence.stop_reason, version)
