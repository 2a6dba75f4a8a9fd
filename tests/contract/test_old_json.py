"""The JSON that SDKs before 0.25 speak, over real HTTP, beside the present SDK's protobuf."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import tinker

from tests.contract.conftest import Running
from tests.contract.data import TOKENS, datum
from tinsmith.settings import EMBEDDED_MODEL

WEIGHTS = [1.0, 0.5, 0.0, -1.0, 2.0, 1.0, 1.0]


def post(server: Running, path: str, asked: Any, **headers: str) -> httpx.Response:
    given = {"X-API-Key": "tml-local", "Accept": "application/json", **headers}
    return httpx.post(f"{server.url}/api/v1/{path}", json=asked, headers=given, timeout=60)


def result(server: Running, submitted: httpx.Response, kind: str) -> httpx.Response:
    asked = {"request_id": submitted.raise_for_status().json()["request_id"]}
    return post(server, "retrieve_future", asked, **{"X-Tinker-Request-Type": kind})


def asked(model: str, seq_id: int, key: str, weights: list[Any] = WEIGHTS) -> dict[str, Any]:
    one = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": TOKENS[:-1]}]},
        "loss_fn_inputs": {
            "target_tokens": {"data": TOKENS[1:], "dtype": "int64"},
            "weights": {"data": weights, "dtype": "float32", "shape": [len(weights)]},
        },
    }
    return {"model_id": model, "seq_id": seq_id, key: {"data": [one], "loss_fn": "cross_entropy"}}


@pytest.fixture
def twins(client: tinker.ServiceClient) -> list[tinker.TrainingClient]:
    """Two models that are alike."""
    return [client.create_lora_training_client(EMBEDDED_MODEL, rank=4, seed=5) for _ in range(2)]


def test_json_and_protobuf_train_alike(server: Running, twins: list[tinker.TrainingClient]) -> None:
    present, old = twins
    model = old.get_info().model_id
    submitted = post(server, "forward", asked(model, 1, "forward_input"))
    first = result(server, submitted, "Forward").json()
    submitted = post(server, "forward_backward", asked(model, 2, "forward_backward_input"))
    answer = result(server, submitted, "ForwardBackward")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == first
    step = {"model_id": model, "seq_id": 3, "adam_params": {"learning_rate": 0.01}}
    assert "error" not in result(server, post(server, "optim_step", step), "OptimStep").json()
    last = result(server, post(server, "forward", asked(model, 4, "forward_input")), "Forward")

    data = [datum(weights=WEIGHTS)]
    passed = present.forward_backward(data, "cross_entropy").result()
    assert first["metrics"]["loss:sum"] == passed.metrics["loss:sum"]
    tensor = passed.loss_fn_outputs[0]["logprobs"]
    found = first["loss_fn_outputs"][0]["logprobs"]
    assert (found["dtype"], found["shape"]) == ("float32", tensor.shape)
    assert found["data"] == pytest.approx(list(tensor.data))
    present.optim_step(tinker.AdamParams(learning_rate=0.01)).result()
    # Exactly one gradient was added: the forward pass left none.
    after = present.forward(data, "cross_entropy").result().metrics["loss:sum"]
    assert last.json()["metrics"]["loss:sum"] == after < passed.metrics["loss:sum"]


def test_a_sample_in_both_formats(server: Running, client: tinker.ServiceClient) -> None:
    session = post(server, "create_session", {"tags": [], "sdk_version": "0.12.0"}).json()
    sampler = {
        "session_id": session["session_id"],
        "sampling_session_seq_id": 0,
        "base_model": EMBEDDED_MODEL,
    }
    name = post(server, "create_sampling_session", sampler).json()["sampling_session_id"]
    sample = {
        "sampling_session_id": name,
        "seq_id": 0,
        "num_samples": 2,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]},
        "sampling_params": {"max_tokens": 4, "seed": 3},
        "prompt_logprobs": True,
    }
    submitted = post(server, "asample", sample)
    found = result(server, submitted, "Sample").json()
    present = client.create_sampling_client(base_model=EMBEDDED_MODEL)
    prompt = tinker.ModelInput.from_ints(TOKENS)
    params = tinker.SamplingParams(max_tokens=4, seed=3)
    wanted = present.sample(prompt, 2, params, include_prompt_logprobs=True).result()
    assert found["type"] == "sample"
    for one, other in zip(found["sequences"], wanted.sequences, strict=True):
        assert (one["tokens"], one["stop_reason"]) == (list(other.tokens), other.stop_reason)
        assert one["logprobs"] == pytest.approx(list(other.logprobs))
    assert found["prompt_logprobs"][0] is None
    assert found["prompt_logprobs"][1:] == pytest.approx(list(wanted.prompt_logprobs)[1:])
    request = {"request_id": submitted.json()["request_id"]}
    both = {"Accept": "application/x-protobuf, application/json", "X-Tinker-Request-Type": "Sample"}
    answer = post(server, "retrieve_future", request, **both)
    assert answer.headers["content-type"] == "application/x-protobuf"


@pytest.mark.parametrize("weights", [[1.0], ["x"] * 7, [None] * 7])
def test_a_refused_request_uses_its_number_up(
    server: Running, twins: list[tinker.TrainingClient], weights: list[Any]
) -> None:
    model = twins[0].get_info().model_id
    refused = post(server, "forward_backward", asked(model, 1, "forward_backward_input", weights))
    assert refused.status_code in (400, 422)
    assert "weights" in refused.json()["detail"]
    good = post(server, "forward", asked(model, 2, "forward_input"))
    assert result(server, good, "Forward").json()["metrics"]["loss:sum"] > 0


def test_chunks_may_arrive_in_any_order(server: Running, twins: list[Any]) -> None:
    model = twins[0].get_info().model_id
    submitted = {
        seq_id: post(server, "forward_backward", asked(model, seq_id, "forward_backward_input"))
        for seq_id in (3, 2, 1)
    }
    found = [result(server, one, "ForwardBackward").json() for one in submitted.values()]
    assert found[0] == found[1] == found[2]
