"""JSON of SDKs before 0.25: the same request and the same result as in protobuf."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
import tinker
from hypothesis import given
from hypothesis import strategies as st
from tinker.proto import response_conv
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.types import ForwardBackwardInput, ForwardBackwardRequest

from tinsmith.errors import RequestError
from tinsmith.service.wire import old_json, proto
from tinsmith.service.wire.proto import pb

CHUNKS = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
TARGETS = {"data": [2, 3], "dtype": "int64"}


def body(key: str = "forward_backward_input", **tensors: object) -> bytes:
    datum = {"model_input": CHUNKS, "loss_fn_inputs": {"target_tokens": TARGETS, **tensors}}
    given_ = {"data": [datum], "loss_fn": "cross_entropy"}
    asked = {"model_id": "m", "seq_id": 3, key: given_}
    return json.dumps(asked, separators=(",", ":")).encode()


def protobuf(parts: list[list[int]], inputs: dict[str, Any], config: dict[str, float]) -> Any:
    """The request as the present SDK sends it."""
    chunks = [tinker.types.EncodedTextChunk(tokens=part) for part in parts]
    datum = tinker.Datum(model_input=tinker.ModelInput(chunks=chunks), loss_fn_inputs=inputs)
    asked = ForwardBackwardRequest(
        forward_backward_input=ForwardBackwardInput(
            data=[datum, datum], loss_fn="ppo", loss_fn_config=config
        ),
        model_id="m",
        seq_id=4,
    )
    body = forward_backward_request_to_proto(asked).SerializeToString()
    return pb.ForwardBackwardRequest.FromString(body)


def plain(parts: list[list[int]], inputs: dict[str, Any], config: dict[str, float]) -> bytes:
    """The request as older SDKs send it."""
    datum = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": part} for part in parts]},
        "loss_fn_inputs": {
            name: {
                "data": array.flatten().tolist(),
                "dtype": str(array.dtype),
                "shape": list(array.shape),
            }
            for name, array in inputs.items()
        },
    }
    given_ = {"data": [datum, datum], "loss_fn": "ppo", "loss_fn_config": config}
    return json.dumps({"model_id": "m", "seq_id": 4, "forward_backward_input": given_}).encode()


def assert_same(one: proto.ForwardBackward, other: proto.ForwardBackward) -> None:
    for name in ("model_id", "seq_id", "loss_fn", "loss_params", "forward_only"):
        assert getattr(one, name) == getattr(other, name)
    assert len(one.data) == len(other.data)
    for a, b in zip(one.data, other.data, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        assert a.inputs.keys() == b.inputs.keys()
        for name, array in a.inputs.items():
            assert array.dtype == b.inputs[name].dtype
            np.testing.assert_array_equal(array, b.inputs[name])


@given(
    parts=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=3),
    weights=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=9),
    targets=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9),
)
def test_json_and_protobuf_are_read_alike(
    parts: list[list[int]], weights: list[float], targets: list[int]
) -> None:
    inputs = {
        "weights": np.asarray(weights, np.float32),
        "target_tokens": np.asarray(targets, np.int64),
        "table": np.asarray([weights, weights], np.float32),
    }
    config = {"clip_low_threshold": 0.7}
    assert_same(
        old_json.decode_forward_backward(plain(parts, inputs, config)),
        proto.decode_forward_backward(protobuf(parts, inputs, config)),
    )


def test_compressed_sparse_rows() -> None:
    sparse = {
        "data": [0.5, 2],
        "dtype": "float32",
        "shape": [3, 2],
        "sparse_crow_indices": [0, 1, 1, 2],
        "sparse_col_indices": [1, 0],
    }
    datum = old_json.decode_forward_backward(body(weights=sparse)).data[0]
    assert datum.inputs["weights"].tolist() == [[0, 0.5], [0, 0], [2, 0]]
    assert datum.inputs["weights"].dtype == np.float32


def test_forward_is_forward_only() -> None:
    assert not old_json.decode_forward_backward(body()).forward_only
    assert old_json.decode_forward_backward(body("forward_input")).forward_only


def test_a_body_tells_its_format() -> None:
    inputs = {"weights": np.ones(1, np.float32)}
    assert old_json.is_json(plain([[1]], inputs, {}))
    assert not old_json.is_json(protobuf([[1]], inputs, {}).SerializeToString())


@pytest.mark.parametrize(
    "tensor",
    [
        {"data": ["1"], "dtype": "float32"},
        {"data": [None], "dtype": "float32"},
        {"data": [True, False], "dtype": "int64"},
        {"data": [1.5], "dtype": "int64"},
        {"data": [2**63], "dtype": "int64"},
        {"data": [10**30], "dtype": "float32"},
        {"data": [[1], [2]], "dtype": "int64"},
        {"data": [[1], [2, 3]], "dtype": "int64"},
        {"data": [{}], "dtype": "int64"},
        {"data": [1], "dtype": "float64"},
        {"data": [1, 2], "dtype": "int64", "shape": [3]},
        {"data": [1, 2], "dtype": "int64", "shape": [-1]},
        {"data": [1], "dtype": "int64", "shape": [1, 1], "sparse_crow_indices": [0, 1]},
        {"data": [1], "dtype": "int64", "shape": [1, 1], "sparse_col_indices": [0]},
        {
            "data": [1],
            "dtype": "int64",
            "shape": [10**6, 10**6],
            "sparse_crow_indices": [0, 1],
            "sparse_col_indices": [0],
        },
        {"dtype": "int64"},
        [1, 2],
    ],
)
def test_bad_tensors_are_refused(tensor: object) -> None:
    with pytest.raises(RequestError, match="weights"):
        old_json.decode_forward_backward(body(weights=tensor))


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "malformed"),
        (b"[]", "malformed"),
        (b'{"model_id": "m", "seq_id": 1}', "neither forward_backward_input nor forward_input"),
        (body().replace(b'"m"', b"7"), "model_id"),
        (body().replace(b"encoded_text", b"image"), "encoded_text chunks only"),
        (body().replace(b'"tokens":[1,2]', b'"tokens":[9223372036854775808]'), "model_input"),
        (body().replace(b'"tokens":[1,2]', b'"tokens":["a"]'), "tokens"),
    ],
)
def test_bad_requests_are_refused(sent: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        old_json.decode_forward_backward(sent)


def test_a_pass_result_says_the_same_in_json() -> None:
    outputs = [{"logprobs": np.linspace(-3, 0, n, dtype=np.float32)} for n in (3, 1, 0)] + [
        {"logprobs": np.full((2, 4), -0.1, dtype=np.float32)}
    ]
    payload = proto.encode_forward_backward(outputs, {"loss:sum": 1.5})
    found = orjson.loads(old_json.result_as_json("forward_backward", payload))
    wanted = response_conv.deserialize_forward_backward_output(payload)
    assert found["loss_fn_output_type"] == wanted.loss_fn_output_type
    assert found["metrics"] == {"loss:sum": 1.5}
    for one, other in zip(found["loss_fn_outputs"], wanted.loss_fn_outputs, strict=True):
        tensor = other["logprobs"]
        assert (one["logprobs"]["dtype"], one["logprobs"]["shape"]) == ("float32", tensor.shape)
        data = np.asarray(one["logprobs"]["data"], np.float32)
        np.testing.assert_array_equal(data, np.asarray(tensor.data, np.float32))


@pytest.mark.parametrize(
    ("stored", "array", "dtype"),
    [
        (pb.DTYPE_INT32, np.asarray([1, -2], "<i4"), "int64"),
        (pb.DTYPE_INT64, np.asarray([1, -2], "<i8"), "int64"),
        (pb.DTYPE_BFLOAT16, np.asarray([1, -2], "<f4").view("<u2")[1::2], "float32"),
    ],
)
def test_other_types_are_widened(stored: int, array: Any, dtype: str) -> None:
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    record = message.loss_fn_outputs.add(num_datums=1)
    field = record.fields["x"]
    field.data, field.dtype = array.tobytes(), stored
    field.offsets = np.asarray([0, array.nbytes], "<i8").tobytes()
    found = orjson.loads(old_json.result_as_json("forward_backward", message.SerializeToString()))
    assert found["loss_fn_outputs"] == [{"x": {"data": [1, -2], "dtype": dtype, "shape": [2]}}]


def test_a_sample_says_the_same_in_json() -> None:
    message = pb.SampleResponse()
    logprobs = np.asarray([-0.1, -2.5], "<f4")
    for reason in (pb.STOP_REASON_STOP, pb.STOP_REASON_LENGTH):
        message.sequences.add(
            stop_reason=reason,
            tokens=np.asarray([5, 6], "<i4").tobytes(),
            logprobs=logprobs.tobytes(),
        )
    message.prompt_logprobs = np.asarray([np.nan, -0.5], "<f4").tobytes()
    table = message.topk_prompt_logprobs
    table.k, table.length = 2, 3
    table.token_ids = np.asarray([0, 0, 7, 8, 9, 0], "<i4").tobytes()
    table.logprobs = np.asarray([-99999, -99999, -0.5, -1, -0.25, -99999], "<f4").tobytes()
    found = orjson.loads(old_json.result_as_json("sample", message.SerializeToString()))
    assert found["type"] == "sample"
    assert [one["stop_reason"] for one in found["sequences"]] == ["stop", "length"]
    assert found["sequences"][0]["tokens"] == [5, 6]
    np.testing.assert_array_equal(np.float32(found["sequences"][1]["logprobs"]), logprobs)
    assert found["prompt_logprobs"] == [None, -0.5]
    assert found["topk_prompt_logprobs"] == [None, [[7, -0.5], [8, -1]], [[9, -0.25]]]


def test_what_was_not_asked_for_is_left_out() -> None:
    payload = proto.encode_sample([proto.WireSequence([5], [-1.0], "stop")], None, 0)
    assert orjson.loads(old_json.result_as_json("sample", payload)) == {
        "type": "sample",
        "sequences": [{"stop_reason": "stop", "tokens": [5], "logprobs": [-1.0]}],
    }
