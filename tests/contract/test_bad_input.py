"""Each wrong request gets one sentence at once, and the service goes on serving."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import httpx
import numpy as np
import pytest
import tinker

from tests.contract.conftest import Running, serving
from tests.contract.data import TOKENS, datum, prompt
from tinsmith.service.engine.fake import FakeBackend
from tinsmith.settings import EMBEDDED_MODEL


@pytest.fixture(autouse=True)
def still_serving(trainer: tinker.TrainingClient) -> Iterator[None]:
    """Refusals come at once, and the client that was refused goes on with its next request."""
    start = time.monotonic()
    yield
    assert trainer.forward([datum()], "cross_entropy").result(timeout=10).metrics
    assert time.monotonic() - start < 20, "a refusal must not be repeated for minutes"


def refused(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(tinker.APIStatusError) as caught:
        call()
    assert caught.value.status_code in (400, 404, 413, 415, 422)
    detail = caught.value.response.json()["detail"]
    for word in words:
        assert word in detail
    assert "\n" not in detail


@pytest.mark.parametrize(
    ("data", "loss", "words"),
    [
        ([datum([*TOKENS[:3], 10**6])], "cross_entropy", ("1000000", "vocabulary")),
        ([datum([10**6, *TOKENS[:3]])], "cross_entropy", ("1000000", "vocabulary")),
        ([datum(TOKENS * 400)], "cross_entropy", ("3199 tokens", "context")),
        ([datum()], "cross_entropie", ("cross_entropy", "Did you mean")),
        ([datum()], "ppo", ("logprobs",)),
        (
            [datum(logprobs=[np.nan] * 7, advantages=[1.0] * 7)],
            "importance_sampling",
            ("nan", "finite"),
        ),
        ([datum(weights=[1.0] * 3)], "cross_entropy", ("shape [3]", "[7]")),
    ],
)
def test_bad_data(
    trainer: tinker.TrainingClient, data: list[tinker.Datum], loss: str, words: tuple[str, ...]
) -> None:
    refused(lambda: trainer.forward_backward(data, loss).result(), *words)


def test_bad_loss_settings(trainer: tinker.TrainingClient) -> None:
    rl = datum(logprobs=[-1.0] * 7, advantages=[1.0] * 7)
    refused(
        lambda: trainer.forward_backward([rl], "ppo", loss_fn_config={"clip": 1.0}).result(),
        "clip",
        "clip_low_threshold",
    )


def test_images_are_refused(trainer: tinker.TrainingClient) -> None:
    image = tinker.types.ImageChunk(data=b"x", format="png", expected_tokens=1)
    bad = tinker.Datum(
        model_input=tinker.ModelInput(chunks=[image]),
        loss_fn_inputs={"target_tokens": np.asarray([1])},
    )
    refused(lambda: trainer.forward_backward([bad], "cross_entropy").result(), "image")


@pytest.mark.parametrize("rate", [-1.0, float("inf")])
def test_bad_learning_rate(trainer: tinker.TrainingClient, rate: float) -> None:
    refused(
        lambda: trainer.optim_step(tinker.AdamParams(learning_rate=rate)).result(), "learning_rate"
    )


def test_other_optimizers(trainer: tinker.TrainingClient) -> None:
    params = tinker.types.DimuonParams(learning_rate=0.1)
    refused(lambda: trainer.optim_step(params).result(), "dimuon", "adam_params")


@pytest.mark.parametrize("rank", [0, 100_000])
def test_bad_rank(client: tinker.ServiceClient, rank: int) -> None:
    refused(lambda: client.create_lora_training_client(EMBEDDED_MODEL, rank=rank), "rank")


def test_unknown_base_model(client: tinker.ServiceClient) -> None:
    refused(lambda: client.create_lora_training_client("no/such-model"), "no/such-model")
    refused(lambda: client.create_sampling_client(base_model="no/such-model"), "no/such-model")


@pytest.mark.parametrize(
    ("length", "params", "words"),
    [
        (5000, {"max_tokens": 4}, ("5000", "context")),
        (4, {"max_tokens": 0}, ("max_tokens",)),
        (4, {"max_tokens": 10**6}, ("context",)),
        (4, {"max_tokens": 4, "temperature": -1.0}, ("temperature",)),
        (4, {"max_tokens": 4, "top_p": 0.0}, ("top_p",)),
        (4, {"max_tokens": 4, "top_k": 0}, ("top_k",)),
        (4, {"max_tokens": 4, "stop": [""]}, ("stop",)),
    ],
)
def test_bad_sampling(
    client: tinker.ServiceClient, length: int, params: dict, words: tuple[str, ...]
) -> None:
    sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
    refused(
        lambda: sampler.sample(prompt(length), 1, tinker.SamplingParams(**params)).result(), *words
    )
    good = sampler.sample(prompt(), 1, tinker.SamplingParams(max_tokens=2, stop=[])).result()
    assert len(good.sequences[0].tokens) == 2


def test_bad_prompts(client: tinker.ServiceClient) -> None:
    sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
    params = tinker.SamplingParams(max_tokens=2)
    for bad, word in (([], "empty"), ([10**6], "vocabulary"), ([-1], "vocabulary")):
        asked = tinker.ModelInput.from_ints(bad)
        refused(lambda asked=asked: sampler.sample(asked, 1, params).result(), word)
    refused(lambda: sampler.sample(prompt(), 0, params).result(), "num_samples")
    refused(
        lambda: sampler.sample(prompt(), 1, params, topk_prompt_logprobs=-1).result(),
        "topk_prompt_logprobs",
    )


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "..", "", "x" * 200, "a\nb"])
def test_unsafe_names(trainer: tinker.TrainingClient, name: str) -> None:
    refused(lambda: trainer.save_state(name).result(), "name")


def test_unknown_checkpoints(client: tinker.ServiceClient, trainer: tinker.TrainingClient) -> None:
    path = trainer.save_state("known").result().path
    wrong = path.replace("known", "unknown")
    refused(lambda: client.create_sampling_client(model_path=wrong), wrong, path)
    refused(lambda: client.create_training_client_from_state(wrong), path)
    smaller = client.create_lora_training_client(EMBEDDED_MODEL, rank=4)
    refused(lambda: smaller.load_state(path).result(), "rank 8", "has 4")
    refused(lambda: client.create_sampling_client(model_path="tinker://../../etc"), "path")


# Straight over HTTP: what no SDK sends.


def post(server: Running, path: str, **kwargs: object) -> httpx.Response:
    return httpx.post(f"{server.url}/api/v1/{path}", **kwargs)


@pytest.mark.parametrize("path", ["create_session", "asample", "optim_step", "retrieve_futures"])
@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"tags": 3, "seq_id": "x"}'])
def test_malformed_json(server: Running, path: str, body: bytes) -> None:
    answer = post(server, path, content=body)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("the request is malformed")


def test_unknown_fields_are_ignored(server: Running) -> None:
    answer = post(server, "create_session", json={"tags": [], "surprise": 1})
    assert answer.status_code == 200


def test_malformed_protobuf(server: Running) -> None:
    proto = {"content-type": "application/x-protobuf"}
    assert post(server, "forward_backward", content=b"\xff\xff", headers=proto).status_code == 422
    assert post(server, "forward_backward", json={}).status_code == 422
    assert post(server, "forward_backward", content=b"x").status_code == 415


def test_unknown_things_are_404(server: Running) -> None:
    assert post(server, "retrieve_future", json={"request_id": "x"}).status_code == 404
    assert post(server, "session_heartbeat", json={"session_id": "x"}).status_code == 404
    assert post(server, "get_info", json={"model_id": "x"}).status_code == 404
    assert httpx.get(f"{server.url}/api/v1/samplers/x").status_code == 404
    assert httpx.get(f"{server.url}/nowhere").json()["detail"]


# When the engine fails.


class Failing(FakeBackend):
    """Fails on request, in ways an engine should not."""

    fail = ""

    def optim_step(self, model, adam):
        if self.fail == "optim":
            raise RuntimeError("out of memory")
        return super().optim_step(model, adam)

    def step(self):
        if self.fail == "step":
            raise RuntimeError("bad step")
        return super().step()

    def save(self, model, to, *, optimizer):
        if self.fail == "disk":
            to.mkdir(parents=True)
            (to / "half").write_text("half")
            raise OSError(28, "No space left on device")
        super().save(model, to, optimizer=optimizer)


def test_engine_failures_are_answers(tmp_path) -> None:
    backend = Failing()
    with serving(backend, tmp_path) as running:
        client = running.client()
        trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=4)
        sampler = trainer.save_weights_and_get_sampling_client()
        params = tinker.SamplingParams(max_tokens=2, stop=[])

        def failed(call: Callable[[], object], *words: str) -> None:
            with pytest.raises(tinker.RequestFailedError) as caught:
                call()
            assert caught.value.category.value == "server"
            for word in words:
                assert word in str(caught.value)

        backend.fail = "optim"
        failed(lambda: trainer.optim_step(tinker.AdamParams()).result(), "out of memory")
        backend.fail = "step"
        failed(lambda: sampler.sample(prompt(), 1, params).result(), "bad step")
        backend.fail = "disk"
        failed(lambda: trainer.save_state("full").result(), "No space left", "full")
        backend.fail = ""
        assert not list(tmp_path.glob("checkpoints/*/weights/*"))
        assert not list(tmp_path.glob("checkpoints/*/weights/.*"))
        assert trainer.save_state("full").result().path
        assert sampler.sample(prompt(), 1, params).result().sequences
        client.close("success").result()
