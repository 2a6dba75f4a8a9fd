"""What SDKs before 0.25 send and read as JSON where newer ones use protobuf."""

# pyright: basic
# (the protobuf runtime ships without type information)

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from tinsmith.errors import RequestError
from tinsmith.service.wire import tensors
from tinsmith.service.wire.proto import ForwardBackward, WireDatum, pb, within_memory
from tinsmith.service.wire.types import ModelInput, SeqId, WireModel, parse

_KINDS = {tensors.INT64: "i", tensors.FLOAT32: "iuf"}  # what numpy may find in a tensor's data
_STOP_REASONS = {pb.STOP_REASON_STOP: "stop", pb.STOP_REASON_LENGTH: "length"}
_DTYPES = {
    pb.DTYPE_FLOAT32: tensors.FLOAT32,
    pb.DTYPE_INT64: tensors.INT64,
    pb.DTYPE_INT32: tensors.INT32,
    pb.DTYPE_BFLOAT16: tensors.BFLOAT16,
}
_NO_LOGPROB = -99999.0  # a cell of the top-k table that holds nothing


class _Tensor(WireModel):
    data: list[Any]  # thousands of numbers: numpy checks them at once
    dtype: Literal["float32", "int64"]
    shape: list[int] | None = None
    sparse_crow_indices: list[Any] | None = None
    sparse_col_indices: list[Any] | None = None


class _Datum(WireModel):
    model_input: ModelInput
    loss_fn_inputs: dict[str, _Tensor]


class _Input(WireModel):
    data: list[_Datum]
    loss_fn: str
    loss_fn_config: dict[str, float] | None = None


class PassRequest(WireModel):
    model_id: str
    seq_id: SeqId
    forward_backward_input: _Input | None = None
    forward_input: _Input | None = None


# ── requests ─────────────────────────────────────────────────────────────────────────────────


def is_json(body: bytes) -> bool:
    """Whether a body is JSON; no protobuf message of the SDK begins with this byte."""
    return body[:1] == b"{"


def decode_forward_backward(body: bytes) -> ForwardBackward:
    """The JSON body of `forward_backward` or `forward` as arrays; `forward_input` means forward only."""
    asked = parse(PassRequest, body)
    given = asked.forward_backward_input or asked.forward_input
    if given is None:
        raise RequestError(
            "the request has neither forward_backward_input nor forward_input; "
            "send what the tinker SDK sends.",
            status=422,
        )
    return ForwardBackward(
        model_id=asked.model_id,
        seq_id=asked.seq_id,
        data=within_memory(
            _datum(datum, f"datum {index}") for index, datum in enumerate(given.data)
        ),
        loss_fn=given.loss_fn,
        loss_params=dict(given.loss_fn_config or {}),
        forward_only=asked.forward_backward_input is None,
    )


def _datum(datum: _Datum, where: str) -> WireDatum:
    parts: list[NDArray[np.int64]] = []
    for chunk in datum.model_input.chunks:
        if chunk.type != "encoded_text" or chunk.tokens is None:
            raise RequestError(
                f"{where}: model_input holds a {chunk.type} chunk; "
                "this service takes encoded_text chunks only."
            )
        parts.append(_numbers(chunk.tokens, tensors.INT64, f"{where}: model_input"))
    tokens = parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, np.int64)])
    inputs = {
        name: _tensor(tensor, f"{where}: loss_fn_inputs[{name!r}]")
        for name, tensor in datum.loss_fn_inputs.items()
    }
    return WireDatum(tokens, inputs)


def _tensor(tensor: _Tensor, where: str) -> NDArray[Any]:
    values = _numbers(tensor.data, tensor.dtype, where).tobytes()
    crow, col = tensor.sparse_crow_indices, tensor.sparse_col_indices
    if crow is None and col is None:
        return tensors.dense(values, tensor.dtype, tensor.shape or (), where)
    return tensors.sparse(
        values,
        _numbers(crow or [], tensors.INT64, where).tobytes(),
        _numbers(col or [], tensors.INT64, where).tobytes(),
        tensor.dtype,
        tensor.shape or (),
        where,
    )


def _numbers(values: list[Any], dtype: str, where: str) -> NDArray[Any]:
    """A flat list as an array; texts, nulls, nested lists and fractions among integers are refused."""
    wanted = np.int64 if dtype == tensors.INT64 else np.float32
    if not values:
        return np.empty(0, wanted)
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths inside
        array = np.empty(0, object)
    if array.ndim != 1 or array.dtype.kind not in _KINDS[dtype]:
        raise RequestError(f"{where}: the data must be a flat list of {dtype} numbers.", status=422)
    with np.errstate(over="ignore"):  # infinite ones are refused where a loss checks its inputs
        return array.astype(wanted)


# ── results ──────────────────────────────────────────────────────────────────────────────────


def result_as_json(kind: str, payload: bytes) -> bytes:
    """A stored protobuf result as the JSON of older SDKs; `kind` is `sample` or `forward_backward`."""
    value = _sample(payload) if kind == "sample" else _forward_backward(payload)
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _sample(payload: bytes) -> dict[str, Any]:
    message = pb.SampleResponse.FromString(payload)
    value: dict[str, Any] = {
        "type": "sample",
        "sequences": [
            {
                "stop_reason": _STOP_REASONS[sequence.stop_reason],
                "tokens": np.frombuffer(sequence.tokens, "<i4"),
                "logprobs": np.frombuffer(sequence.logprobs, "<f4"),
            }
            for sequence in message.sequences
        ],
    }
    if message.HasField("prompt_logprobs"):
        # NaN, a position without a score, is written as null.
        value["prompt_logprobs"] = np.frombuffer(message.prompt_logprobs, "<f4")
    if message.HasField("topk_prompt_logprobs"):
        value["topk_prompt_logprobs"] = _topk(message.topk_prompt_logprobs)
    return value


def _topk(table: Any) -> list[list[tuple[int, float]] | None]:
    """Per prompt position, pairs of token and log-probability, best first; None where none are."""
    shape = (table.length, table.k)
    ids = np.frombuffer(table.token_ids, "<i4").reshape(shape).tolist()
    logprobs = np.frombuffer(table.logprobs, "<f4").reshape(shape).tolist()
    rows = [
        [(token, score) for token, score in zip(*row, strict=True) if score != _NO_LOGPROB]
        for row in zip(ids, logprobs, strict=True)
    ]
    return [row or None for row in rows]


def _forward_backward(payload: bytes) -> dict[str, Any]:
    message = pb.ForwardBackwardOutput.FromString(payload)
    outputs: list[dict[str, Any]] = []
    for record in message.loss_fn_outputs:
        first = len(outputs)
        outputs.extend({} for _ in range(record.num_datums))
        for name, field in record.fields.items():
            stored = _DTYPES[field.dtype]
            dtype = tensors.INT64 if stored in (tensors.INT32, tensors.INT64) else tensors.FLOAT32
            offsets = np.frombuffer(field.offsets, "<i8").tolist()
            width = prod(field.trailing_shape)
            for index, (start, end) in enumerate(pairwise(offsets)):
                data = tensors.from_bytes(field.data[start:end], stored, name)
                shape = [data.size // width if width else 0, *field.trailing_shape]
                outputs[first + index][name] = {"data": data, "dtype": dtype, "shape": shape}
    return {
        "loss_fn_output_type": message.loss_fn_output_type,
        "loss_fn_outputs": outputs,
        "metrics": dict(message.metrics),
    }
