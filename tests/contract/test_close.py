"""A client that has polls open can be closed at once.

In the SDK a poll that is answered in the very moment it is cancelled goes on for ever, so polls must not be
answered because their session ends.
"""

from __future__ import annotations

from tests.contract.conftest import Running
from tests.contract.data import prompt
from tinsmith.settings import EMBEDDED_MODEL


def test_closing_with_open_polls_returns(server: Running) -> None:
    for _ in range(15):
        client = server.client()
        samplers = [client.create_sampling_client(base_model=EMBEDDED_MODEL) for _ in range(8)]
        for done in [sampler.compute_logprobs(prompt()) for sampler in samplers]:
            done.result()
        client.close("success").result(timeout=20)
