"""An OpenAI-compatible endpoint as a policy: conversations go out as messages and come back as text.

Environments and rollouts speak in tokens, which an endpoint does not show. So its renderer numbers
whole messages: a message is one made-up token, followed by blanks up to its true length where the
endpoint told it. Environments, limits and records then work as with any other policy.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from tinsmith.chat.render import Message, Reply
from tinsmith.chat.turns import Action, Observation
from tinsmith.rl.endpoint_http import Endpoint, EndpointError
from tinsmith.rl.policy import derive_seed
from tinsmith.rl.rollouts import RolloutFailed

BLANK = 0
FAILED = "failed"  # the role of a reply that did not come
SEED_BITS = 31  # some endpoints take no larger seed


class EndpointRenderer:
    """Messages by number, both ways."""

    def __init__(self) -> None:
        self._messages: list[Message] = [{}]  # BLANK is no message
        self._tokens: dict[tuple[str, int], list[int]] = {}
        self._latest: dict[str, list[int]] = {}

    def prompt(self, messages: Sequence[Message]) -> Observation:
        tokens_T: list[int] = []
        for message in messages:
            # What the endpoint said keeps the tokens it was said in, so turns extend each other.
            tokens_T += self._latest.get(_key(message)) or self.number(message)
        return Observation(tokens_T)

    def extend(
        self, observation: Observation, action: Action, messages: Sequence[Message]
    ) -> Observation | None:
        return Observation(observation.tokens_T + action.tokens_T + self.prompt(messages).tokens_T)

    def parse(self, action: Action) -> str:
        message = self.messages(action.tokens_T)[0]
        if message["role"] == FAILED:
            # Told here and not by the policy: it then costs this rollout alone, not its whole group.
            raise RolloutFailed(message["content"])
        return message["content"]

    def text(self, tokens_T: Sequence[int]) -> str:
        messages = self.messages(tokens_T)
        if len(messages) == 1:
            return messages[0]["content"]
        return "\n".join(f"{message['role']}: {message['content']}" for message in messages)

    def reply(self, messages: Sequence[Message]) -> Reply:
        shown, said = self.prompt(messages[:-1]).tokens_T, self.prompt(messages[-1:]).tokens_T
        return Reply(shown + said, [*([False] * len(shown)), *([True] * len(said))])

    def number(self, message: Message, length: int = 1) -> list[int]:
        """The message as tokens, as many as it is long."""
        key = (_key(message), length)
        if key not in self._tokens:
            self._messages.append(dict(message))
            self._tokens[key] = [len(self._messages) - 1, *[BLANK] * (length - 1)]
        self._latest[key[0]] = self._tokens[key]
        return list(self._tokens[key])

    def messages(self, tokens_T: Sequence[int]) -> list[Message]:
        """The messages that the tokens stand for."""
        return [self._messages[token] for token in tokens_T if token != BLANK]


def _key(message: Message) -> str:
    return json.dumps(message, sort_keys=True)


class EndpointPolicy:
    """Asks an endpoint; each sample is a request of its own, as not every endpoint gives several."""

    version = 0

    def __init__(self, endpoint: Endpoint, renderer: EndpointRenderer, temperature: float) -> None:
        self._endpoint = endpoint
        self._renderer = renderer
        self._temperature = temperature
        self.counted = True  # whether the endpoint told the length of every reply

    async def __call__(
        self, observation: Observation, *, max_tokens: int, samples: int, seed: int
    ) -> list[Action]:
        messages = self._renderer.messages(observation.tokens_T)
        return await asyncio.gather(
            *(self._say(messages, max_tokens, derive_seed(seed, n)) for n in range(samples))
        )

    async def _say(self, messages: Sequence[Message], max_tokens: int, seed: int) -> Action:
        try:
            reply = await self._endpoint.say(
                messages,
                max_tokens=max_tokens,
                temperature=self._temperature,
                seed=seed % 2**SEED_BITS,
            )
        except EndpointError as error:
            return self._action({"role": FAILED, "content": str(error)}, 1, cut_off=False)
        self.counted = self.counted and reply.tokens is not None
        said: Message = {"role": "assistant", "content": reply.text}
        return self._action(said, max(reply.tokens or 1, 1), cut_off=reply.cut_off)

    def _action(self, message: Message, length: int, *, cut_off: bool) -> Action:
        tokens_T = self._renderer.number(message, length)
        return Action(tokens_T, [0.0] * len(tokens_T), "length" if cut_off else "stop")
