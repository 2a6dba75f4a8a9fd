"""Good requests to one session of a server: what the malformed ones are made from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import zstandard
from tinker.proto import tinker_public_pb2 as pb

from tinsmith.settings import EMBEDDED_MODEL

API = "/api/v1"
JSON = "application/json"
PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    origin: str = ""  # which generator made it


@dataclass(frozen=True)
class Things:
    """Ids that exist, so that requests get past the look-ups."""

    session: str
    model: str
    sampler: str
    future: str
    checkpoint: str

    def named(self) -> dict[str, str]:
        return {
            "session_id": self.session,
            "model_id": self.model,
            "run": self.model,
            "sampling_session_id": self.sampler,
            "sampler_id": self.sampler,
            "request_id": self.future,
            "base_model": EMBEDDED_MODEL,
            "model": EMBEDDED_MODEL,
            "name": "kept",
            "kind": "weights",
            "path": self.checkpoint,
            "tinker_path": self.checkpoint,
            "model_path": self.checkpoint,
            "source_path": self.checkpoint,
        }


def call(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(f"{API}/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def finish(client: httpx.Client, future: str) -> None:
    while (
        answer := client.post(f"{API}/retrieve_future", json={"request_id": future})
    ) is not None:
        if answer.status_code != 408:
            assert answer.status_code == 200, answer.text
            return


def make_things(client: httpx.Client) -> Things:
    session = call(client, "create_session", {})["session_id"]
    made = call(
        client,
        "create_model",
        {
            "session_id": session,
            "model_seq_id": 0,
            "base_model": EMBEDDED_MODEL,
            "lora_config": {"rank": 4},
        },
    )
    saved = call(
        client, "save_weights", {"model_id": made["model_id"], "seq_id": 1, "path": "kept"}
    )
    sampler = call(
        client,
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": 0, "base_model": EMBEDDED_MODEL},
    )["sampling_session_id"]
    finish(client, saved["request_id"])
    path = f"tinker://{made['model_id']}/weights/kept"
    return Things(session, made["model_id"], sampler, saved["request_id"], path)


def message(model: str, seq_id: int, data: int = 3) -> pb.ForwardBackwardRequest:
    """A good forward_backward, dense and sparse."""
    asked = pb.ForwardBackwardRequest(model_id=model, seq_id=seq_id, loss_fn="cross_entropy")
    for number in range(data):
        length = 5 + number
        datum = asked.data.add()
        tokens = np.arange(1, length + 1, dtype="<i4")
        datum.model_input.add().encoded_text.tokens = tokens.tobytes()
        target = datum.loss_fn_inputs["target_tokens"]
        target.dtype = pb.DTYPE_INT64
        if number % 2:
            target.shape.extend((length, 2))
            target.sparse_csr.values = np.ones(length, "<i8").tobytes()
            target.sparse_csr.crow_indices = np.arange(length + 1, dtype="<i8").tobytes()
            target.sparse_csr.col_indices = np.zeros(length, "<i8").tobytes()
        else:
            target.shape.append(length)
            target.dense = np.ones(length, "<i8").tobytes()
    return asked


def _bodies(things: Things, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """JSON requests; `number` is not used before in this session."""
    model, prompt = things.model, {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}
    sampling = {"max_tokens": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "stop": ["x"]}
    yield "create_session", {"tags": ["a"], "user_metadata": {"k": [1]}, "sdk_version": "0.36.0"}
    yield "session_heartbeat", {"session_id": things.session}
    yield (
        "create_model",
        {
            "session_id": things.session,
            "model_seq_id": number,
            "base_model": EMBEDDED_MODEL,
            "lora_config": {"rank": 2, "seed": 1, "train_mlp": False},
            "optimizer_config": {"type": "adamw"},
        },
    )
    yield "get_info", {"model_id": model}
    yield "optim_step", {"model_id": model, "seq_id": number, "adam_params": {"beta1": 0.5}}
    yield (
        "save_weights",
        {"model_id": model, "seq_id": number, "path": "n", "ttl_seconds": 9000, "overwrite": True},
    )
    yield (
        "save_weights_for_sampler",
        {"model_id": model, "seq_id": number, "sampling_session_seq_id": number},
    )
    yield (
        "load_weights",
        {
            "model_id": model,
            "seq_id": number,
            "path": things.checkpoint,
            "optimizer": True,
        },
    )
    yield "weights_info", {"tinker_path": things.checkpoint}
    yield (
        "create_sampling_session",
        {
            "session_id": things.session,
            "sampling_session_seq_id": number,
            "model_path": things.checkpoint,
        },
    )
    yield "join_sampling_session", {"sampling_session_id": things.sampler}
    yield (
        "asample",
        {
            "sampling_session_id": things.sampler,
            "seq_id": number,
            "num_samples": 2,
            "prompt": prompt,
            "sampling_params": sampling,
            "prompt_logprobs": True,
            "topk_prompt_logprobs": 2,
            "topk_sample_logprobs": 2,
            "prompt_alt_tokens_k": 1,
            "target_prompt_logprobs": {"data": [1, 2], "dtype": "int64", "shape": [2, 1]},
        },
    )
    yield "retrieve_future", {"request_id": things.future, "allow_metadata_only": True}
    target = {"type": "sampling_session", "sampling_session_id": things.sampler}
    yield "retrieve_futures", {"target": target, "prev_cursor": 0, "timeout": 0.0}
    yield "cancel_future", {"request_id": things.future}
    inputs = {"target_tokens": {"data": [2, 3], "dtype": "int64", "shape": [2]}}
    datum = {"model_input": {"chunks": [{"tokens": [1, 2]}]}, "loss_fn_inputs": inputs}
    yield (
        "forward",
        {
            "model_id": model,
            "seq_id": number,
            "forward_input": {"data": [datum], "loss_fn": "cross_entropy"},
        },
    )
    yield "sessions/search", {"user_metadata": {"k": "v"}, "owner": {"type": "own"}, "limit": 3}
    yield "copy_weights", {"source_path": things.checkpoint, "destination_project_id": "p"}
    yield "unload_model", {"model_id": f"{things.session}:train:{number}"}
    yield "client/config", {"sdk_version": "0.36.0"}
    yield "telemetry", {"events": []}


def good_requests(things: Things) -> list[Request]:
    numbers = itertools.count(1_000_000)
    made = [
        Request("POST", f"{API}/{path}", json.dumps(body).encode(), {"content-type": JSON})
        for path, body in _bodies(things, next(numbers))
    ]
    one = f"{API}/training_runs/{things.model}/checkpoints/weights/kept"
    made.append(Request("PUT", f"{one}/ttl", b'{"ttl_seconds": 90000}', {"content-type": JSON}))
    chat = {
        "model": EMBEDDED_MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    }
    text = {"model": EMBEDDED_MODEL, "prompt": ["a", "b"], "max_tokens": 2, "echo": True, "n": 2}
    for path, body in (("chat/completions", chat), ("completions", text)):
        for extra in ({}, {"stream": True}):
            content = json.dumps(body | extra).encode()
            made.append(Request("POST", f"/v1/{path}", content, {"content-type": JSON}))
    body = message(things.model, 1_000_000).SerializeToString()
    made.append(Request("POST", f"{API}/forward_backward", body, {"content-type": PROTOBUF}))
    packed = {"content-type": PROTOBUF, "content-encoding": "zstd"}
    made.append(Request("POST", f"{API}/forward_backward", zstandard.compress(body), packed))
    return made
