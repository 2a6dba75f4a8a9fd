"""Tensors, messages and JSON requests."""

from __future__ import annotations

import numpy as np
import pytest
import tinker
from hypothesis import given
from hypothesis import strategies as st
from tinker.proto import response_conv
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.types import ForwardBackwardInput, ForwardBackwardRequest

from tinsmith.errors import RequestError
from tinsmith.service.wire import proto, tensors, types


def i8(*values: int) -> bytes:
    return np.asarray(values, dtype="<i8").tobytes()


@given(st.integers(0, 5), st.integers(1, 5), st.randoms())
def test_sparse_rows_become_dense(rows: int, columns: int, random) -> None:
    full = np.asarray(
        [
            [random.choice([0, 0, random.randint(1, 9)]) for _ in range(columns)]
            for _ in range(rows)
        ],
        dtype=np.float32,
    ).reshape(rows, columns)
    row, col = np.nonzero(full)
    crow = np.searchsorted(row, np.arange(rows + 1))
    found = tensors.sparse(
        full[row, col].astype("<f4").tobytes(), i8(*crow), i8(*col), "float32", [rows, columns], "t"
    )
    np.testing.assert_array_equal(found, full)


@pytest.mark.parametrize(
    ("values", "crow", "col", "shape"),
    [
        (1, (0, 1), (0,), [2, 2]),  # too few rows
        (1, (0, 1, 1), (2,), [2, 2]),  # column outside
        (1, (0, 1, 1), (-1,), [2, 2]),
        (1, (0, 2, 1), (0,), [2, 2]),  # decreasing
        (2, (0, 1, 1), (0, 1), [2, 2]),  # more values than rows say
        (1, (0, 1), (0,), [10**6, 10**6]),  # would fill the memory
        (1, (0, 1), (0,), [1]),
    ],
)
def test_bad_sparse_tensors(values: int, crow, col, shape: list[int]) -> None:
    with pytest.raises(RequestError):
        tensors.sparse(b"\0" * 4 * values, i8(*crow), i8(*col), "float32", shape, "t")


def test_dense_tensors() -> None:
    np.testing.assert_array_equal(
        tensors.dense(i8(1, 2, 3, 4), "int64", [2, 2], "t"), [[1, 2], [3, 4]]
    )
    half = tensors.from_bytes(np.asarray([1.5], "<f4").tobytes()[2:], "bfloat16", "t")
    assert half.tolist() == [1.5]
    for data, shape in ((i8(1, 2), [3]), (i8(1)[:5], []), (i8(1), [-1])):
        with pytest.raises(RequestError):
            tensors.dense(data, "int64", shape, "t")


def request(data: list[tinker.Datum], **config: float) -> bytes:
    asked = ForwardBackwardRequest(
        forward_backward_input=ForwardBackwardInput(
            data=data, loss_fn="ppo", loss_fn_config=config or None
        ),
        model_id="m",
        seq_id=4,
    )
    return forward_backward_request_to_proto(asked).SerializeToString()


def test_the_sdks_request_is_read_back() -> None:
    chunks = [tinker.types.EncodedTextChunk(tokens=part) for part in ([1, 2], [], [3])]
    datum = tinker.Datum(
        model_input=tinker.ModelInput(chunks=chunks),
        loss_fn_inputs={
            "target_tokens": np.asarray([2, 3, 4]),
            "weights": np.asarray([0.5, 1, 0], dtype=np.float32),
        },
    )
    message = proto.parse_forward_backward(request([datum], clip_low_threshold=0.7))
    asked = proto.decode_forward_backward(message)
    assert (asked.model_id, asked.seq_id, asked.loss_fn) == ("m", 4, "ppo")
    assert asked.loss_params == {"clip_low_threshold": 0.7}
    assert asked.data[0].tokens.tolist() == [1, 2, 3]
    assert asked.data[0].inputs["weights"].tolist() == [0.5, 1.0, 0.0]
    assert asked.data[0].inputs["target_tokens"].dtype == np.int64


def test_the_sdk_reads_our_results() -> None:
    outputs = [{"logprobs": np.arange(n, dtype=np.float32)} for n in (3, 1)] + [
        {"logprobs": np.ones((2, 4), dtype=np.float32)}
    ]
    body = proto.encode_forward_backward(outputs, {"loss:sum": 1.5})
    found = response_conv.deserialize_forward_backward_output(body)
    assert [tuple(one["logprobs"].shape) for one in found.loss_fn_outputs] == [(3,), (1,), (2, 4)]
    assert list(found.loss_fn_outputs[0]["logprobs"].data) == [0.0, 1.0, 2.0]
    assert found.metrics == {"loss:sum": 1.5}

    sequences = [proto.WireSequence([5, 6], [-1.0, -2.0], "stop")]
    sampled = response_conv.deserialize_sample_response(
        proto.encode_sample(sequences, [None, -0.5], 7)
    )
    assert (sampled.sequences[0].tokens, sampled.sequences[0].stop_reason) == ([5, 6], "stop")
    assert list(sampled.prompt_logprobs) == [None, -0.5]
    assert sampled.prompt_cache_hit_tokens == 7


def test_scores_are_read_by_the_sdk() -> None:
    topk = proto.WireTokens(np.asarray([[7, 5]]), np.asarray([[-0.5, -1.0]], np.float32), empty=2)
    layout = (np.asarray([0, 0, 2]), np.asarray([0, 2]))
    scores = proto.WireScores(
        topk, np.asarray([[0, 0, 0], [-1, 0, -3]], np.float32), layout, proto.WireTokens(
            np.asarray([[3], [4]]), np.asarray([[-3.0], [-4.0]], np.float32)
        ),
    )  # fmt: skip
    alone = proto.WireTokens(topk.tokens, topk.logprobs)
    sequences = [proto.WireSequence([5], [-1.0], "stop", alone)]
    sampled = response_conv.deserialize_sample_response(
        proto.encode_sample(sequences, None, 0, scores)
    )
    assert sampled.prompt_logprobs is None
    assert sampled.topk_prompt_logprobs == [None, None, [(7, -0.5), (5, -1.0)]]
    assert sampled.sequences[0].topk_logprobs == [[(7, -0.5), (5, -1.0)]]
    targets, alt = sampled.target_prompt_logprobs, sampled.prompt_alt_tokens
    assert targets is not None
    assert (targets.data, targets.shape, targets.sparse_col_indices) == ([-1, -3], [2, 3], [0, 2])
    assert alt is not None
    assert (alt.tokens.tolist(), alt.logprobs.tolist()) == ([[3], [4]], [[-3.0], [-4.0]])


def test_sparse_tables_cannot_fill_the_memory_together(monkeypatch) -> None:
    monkeypatch.setattr(tensors, "MAX_DENSE_ELEMENTS", 1000)
    table = tinker.TensorData(
        data=[1.0], dtype="float32", shape=[1, 400], sparse_crow_indices=[0, 1],
        sparse_col_indices=[7],
    )  # fmt: skip
    one = tinker.Datum(model_input=tinker.ModelInput.from_ints([1]), loss_fn_inputs={"w": table})
    assert proto.decode_forward_backward(proto.parse_forward_backward(request([one] * 2)))
    with pytest.raises(RequestError, match="up to datum 2 have 1200 cells"):
        proto.decode_forward_backward(proto.parse_forward_backward(request([one] * 3)))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"session_id": 3, "model_seq_id": 0, "base_model": "b"}', "session_id"),
        (b'{"session_id": "s", "model_seq_id": "0", "base_model": "b"}', "model_seq_id"),
        (b'{"session_id": "s", "model_seq_id": -1, "base_model": "b"}', "model_seq_id"),
        (b"{", "malformed"),
    ],
)
def test_types_are_checked(body: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        types.parse(types.CreateModel, body)
    assert caught.value.status == 422


def test_stops_may_be_absent_empty_text_or_ids() -> None:
    for given_, wanted in (("null", None), ("[]", []), ('"a"', "a"), ('["a", 3]', ["a", 3])):
        assert types.parse(types.SamplingParams, f'{{"stop": {given_}}}'.encode()).stop == wanted
