"""The SDK's protobuf messages to and from plain numpy structures."""

# pyright: basic
# (the protobuf runtime ships without type information)

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from tinsmith.errors import RequestError
from tinsmith.service.wire import tensors
from tinsmith.service.wire.parts import check_parts

if TYPE_CHECKING:
    from tinker.proto import tinker_public_pb2 as pb
else:

    def _messages() -> Any:
        """The generated module of the SDK's wheel, without importing the SDK (seconds) around it."""
        name = "tinker.proto.tinker_public_pb2"
        if name in sys.modules:
            return sys.modules[name]
        package = importlib.util.find_spec("tinker")
        path = Path(package.origin).parent / "proto" / "tinker_public_pb2.py"
        spec = importlib.util.spec_from_file_location("tinsmith_tinker_public_pb2", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    pb = _messages()

_DTYPES: dict[int, str] = {
    pb.DTYPE_FLOAT32: tensors.FLOAT32,
    pb.DTYPE_INT64: tensors.INT64,
    pb.DTYPE_INT32: tensors.INT32,
    pb.DTYPE_BFLOAT16: tensors.BFLOAT16,
}


NO_LOGPROB = -99999.0  # with token 0: an empty cell of a top-k table


@dataclass(frozen=True, eq=False)
class WireDatum:
    tokens: NDArray[np.int64]
    inputs: dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class ForwardBackward:
    model_id: str
    seq_id: int
    data: list[WireDatum]
    loss_fn: str
    loss_params: dict[str, float]
    forward_only: bool


@dataclass(frozen=True, eq=False)
class WireTokens:
    """Tokens and their log-probabilities, [rows, k] each; `empty` rows without any come before."""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    empty: int = 0


@dataclass(frozen=True)
class WireSequence:
    tokens: Sequence[int]
    logprobs: Sequence[float]
    stop_reason: Literal["stop", "length"]
    topk: WireTokens | None = None


@dataclass(frozen=True, eq=False)
class WireScores:
    """What was asked of a prompt's positions beside its own log-probabilities.

    `layout` lists the cells of the targets, as (crow, col); None: they are dense.
    """

    topk: WireTokens | None = None
    targets: NDArray[np.float32] | None = None
    layout: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    alt_tokens: WireTokens | None = None


def parse_forward_backward(body: bytes) -> pb.ForwardBackwardRequest:
    """The message, unread but for its outline; whatever is not one is refused with a sentence."""
    check_parts(body)
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise RequestError(
            "the body is not a ForwardBackwardRequest message; send what the tinker SDK sends.",
            status=422,
        ) from None
    return message


def decode_forward_backward(message: pb.ForwardBackwardRequest) -> ForwardBackward:
    """The message as arrays."""
    params: dict[str, float] = dict(message.loss_fn_config)
    for key, value in message.loss_fn_config_v2.items():
        if value.WhichOneof("value") == "text":
            if message.loss_fn == "custom":  # its loss_id; the loss is refused by its name
                continue
            raise RequestError(f"loss_fn_config[{key!r}] is a text; only numbers are taken.")
        params[key] = value.number
    return ForwardBackward(
        model_id=message.model_id,
        seq_id=message.seq_id,
        data=within_memory(
            _datum(datum, f"datum {index}") for index, datum in enumerate(message.data)
        ),
        loss_fn=message.loss_fn,
        loss_params=params,
        forward_only=message.forward_only,
    )


def within_memory(data: Iterable[WireDatum]) -> list[WireDatum]:
    """All datums; tables that are sparse on the wire must not fill the memory together, either."""
    out: list[WireDatum] = []
    cells = 0
    for index, datum in enumerate(data):
        out.append(datum)
        cells += sum(array.size for array in datum.inputs.values() if array.ndim == 2)
        if cells > tensors.MAX_DENSE_ELEMENTS:
            raise RequestError(
                f"the two-dimensional inputs up to datum {index} have {cells} cells, more than the "
                f"{tensors.MAX_DENSE_ELEMENTS} of one request; send fewer datums at a time."
            )
    return out


def _datum(datum: pb.Datum, where: str) -> WireDatum:
    parts: list[NDArray[np.int64]] = []
    for chunk in datum.model_input:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise RequestError(
                f"{where}: model_input holds a {chunk.WhichOneof('chunk') or 'nameless'} chunk; "
                "this service takes encoded_text chunks only."
            )
        parts.append(
            tensors.from_bytes(chunk.encoded_text.tokens, tensors.INT32, f"{where}: model_input")
        )
    tokens = parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, np.int64)])
    inputs = {
        name: _tensor(tensor, f"{where}: loss_fn_inputs[{name!r}]")
        for name, tensor in datum.loss_fn_inputs.items()
    }
    return WireDatum(tokens, inputs)


def _tensor(tensor: pb.Tensor, where: str) -> NDArray[Any]:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise RequestError(f"{where}: unknown dtype {tensor.dtype}.")
    if tensor.WhichOneof("encoding") == "sparse_csr":
        csr = tensor.sparse_csr
        return tensors.sparse(
            csr.values, csr.crow_indices, csr.col_indices, dtype, tensor.shape, where
        )
    return tensors.dense(tensor.dense, dtype, tensor.shape, where)


def encode_forward_backward(
    outputs: Sequence[Mapping[str, NDArray[Any]]], metrics: Mapping[str, float]
) -> bytes:
    """A ForwardBackwardOutput; neighbours with the same trailing shapes share a record."""
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    message.metrics.update(metrics)
    start = 0
    while start < len(outputs):
        kind = _trailing(outputs[start])
        end = start + 1
        while end < len(outputs) and _trailing(outputs[end]) == kind:
            end += 1
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=end - start)
        for name, trailing in kind.items():
            arrays = [
                np.ascontiguousarray(output[name], dtype="<f4") for output in outputs[start:end]
            ]
            field = record.fields[name]
            field.data = b"".join(array.tobytes() for array in arrays)
            field.offsets = np.cumsum([0, *(a.nbytes for a in arrays)]).astype("<i8").tobytes()
            field.dtype = pb.DTYPE_FLOAT32
            field.trailing_shape.extend(trailing)
        start = end
    return message.SerializeToString()


def _trailing(output: Mapping[str, NDArray[Any]]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape[1:] for name, array in output.items()}


def encode_sample(
    sequences: Iterable[WireSequence],
    prompt_logprobs: Sequence[float | None] | None,
    cached_tokens: int,
    scores: WireScores | None = None,
) -> bytes:
    """A SampleResponse; a prompt position without a log-probability is NaN."""
    message = pb.SampleResponse(prompt_cache_hit_tokens=cached_tokens)
    for sequence in sequences:
        added = message.sequences.add(
            stop_reason=pb.STOP_REASON_STOP
            if sequence.stop_reason == "stop"
            else pb.STOP_REASON_LENGTH,
            tokens=np.asarray(sequence.tokens, dtype="<i4").tobytes(),
            logprobs=np.asarray(sequence.logprobs, dtype="<f4").tobytes(),
        )
        if sequence.topk is not None:
            _set_topk(added.topk_sampled_logprobs, sequence.topk)
    if prompt_logprobs is not None:
        message.prompt_logprobs = np.asarray(prompt_logprobs, dtype="<f4").tobytes()
    scores = scores or WireScores()
    if scores.topk is not None:
        _set_topk(message.topk_prompt_logprobs, scores.topk)
    if scores.targets is not None:
        _set_tensor(message.target_prompt_logprobs, scores.targets, scores.layout)
    if scores.alt_tokens is not None:
        _set_tensor(message.prompt_alt_tokens.tokens, scores.alt_tokens.tokens)
        _set_tensor(message.prompt_alt_tokens.logprobs, scores.alt_tokens.logprobs)
    return message.SerializeToString()


def _set_topk(message: pb.TopkLogprobs, topk: WireTokens) -> None:
    rows = ((topk.empty, 0), (0, 0))
    message.length, message.k = topk.empty + len(topk.tokens), topk.tokens.shape[1]
    message.token_ids = np.pad(topk.tokens, rows).astype("<i4").tobytes()
    logprobs = np.pad(topk.logprobs, rows, constant_values=NO_LOGPROB)
    message.logprobs = logprobs.astype("<f4").tobytes()


def _set_tensor(
    message: pb.Tensor,
    array: NDArray[Any],
    layout: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> None:
    """Dense, or only the cells that `layout` lists."""
    whole = array.dtype.kind == "i"
    message.dtype = pb.DTYPE_INT64 if whole else pb.DTYPE_FLOAT32
    message.shape.extend(array.shape)
    stored = array.astype("<i8" if whole else "<f4")
    if layout is None:
        message.dense = stored.tobytes()
        return
    crow, col = layout
    rows = np.repeat(np.arange(len(array)), np.diff(crow))
    message.sparse_csr.values = stored[rows, col].tobytes()
    message.sparse_csr.crow_indices = crow.astype("<i8").tobytes()
    message.sparse_csr.col_indices = col.astype("<i8").tobytes()
