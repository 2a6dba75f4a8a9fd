"""Looks over a large protobuf request before it is parsed: many tiny parts take far more memory than bytes."""

from __future__ import annotations

from collections.abc import Iterator

from tinsmith.errors import RequestError

SMALL = 1_000_000  # bytes; less cannot become much
MOST_PARTS = 2_000_000  # data, chunks, tensors and settings of one request
MOST_SHAPE_BYTES = 100  # a tensor's sizes, one number each

# Field numbers of the messages that are looked into.
_DATA, _INPUTS, _TENSOR, _SHAPE = 3, 2, 2, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_parts(body: bytes) -> None:
    """Refuses what would not fit; what is malformed is left for the parser to say."""
    if len(body) <= SMALL:
        return
    parts = 0
    for field, start, end in _fields(body, 0, len(body)):
        parts += 1
        if field == _DATA:
            for inner, first, last in _fields(body, start, end):
                parts += 1
                if inner == _INPUTS:
                    _check_shape(body, first, last)
                if parts > MOST_PARTS:
                    break
        if parts > MOST_PARTS:
            raise RequestError(
                f"the request has more than {MOST_PARTS} parts; send fewer data at a time.", 413
            )


def _check_shape(body: bytes, start: int, end: int) -> None:
    """Of one entry of loss_fn_inputs: a name and a tensor."""
    for field, first, last in _fields(body, start, end):
        if field != _TENSOR:
            continue
        size = sum(stop - at for inner, at, stop in _fields(body, first, last) if inner == _SHAPE)
        if size > MOST_SHAPE_BYTES:
            raise RequestError("a tensor of the request has too many dimensions; two are the most.")


def _fields(body: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field of a message; ends where it is malformed."""
    while at < end:
        tag, at = _varint(body, at, end)
        field, kind = tag >> 3, tag & 7
        start = at
        if kind == _VARINT:
            _, at = _varint(body, at, end)
        elif kind == _BYTES:
            size, start = _varint(body, at, end)
            at = start + size
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        else:
            return
        if at > end:
            return
        yield field, start, at


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, end + 1  # cut off: no field can follow
