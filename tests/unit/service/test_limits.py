"""Bounds on bodies: bombs, cut frames, all together, and what protobuf and JSON may be made of."""

from __future__ import annotations

import pytest
import zstandard
from tinker.proto import tinker_public_pb2 as pb

from tinsmith.errors import RequestError
from tinsmith.service.limits import MIB, Bodies, Limits, Unpacker
from tinsmith.service.wire import parts, types


def unpacked(data: bytes, step: int = 100) -> bytes:
    unpacker = Unpacker()
    out = b""
    for start in range(0, len(data), step):
        out += b"".join(unpacker.feed(data[start : start + step]))
    unpacker.finish()
    return out


@pytest.mark.parametrize("step", [1, 7, 10**6])
def test_frames_are_unpacked_however_they_come(step: int) -> None:
    content = bytes(range(256)) * 40
    frame = zstandard.compress(content)
    assert unpacked(frame, step) == content
    assert unpacked(frame + frame, step) == content * 2
    assert unpacked(b"", step) == b""


def test_a_frame_must_be_whole_and_zstd() -> None:
    frame = zstandard.compress(b"x" * 1000)
    with pytest.raises(RequestError, match="cut off"):
        unpacked(frame[:-3])
    with pytest.raises(RequestError, match="not zstd"):
        unpacked(b"{}")
    with pytest.raises(RequestError, match="not zstd"):
        unpacked(frame + b"rubbish")


def test_a_bomb_is_seen_before_it_goes_off() -> None:
    # Blocks of four bytes that say "zero, 128 KiB of it": two gigabytes in 64 KiB.
    bomb = b"\x28\xb5\x2f\xfd\x00\x48" + b"\x02\x00\x10\x00" * 16_000
    first = next(iter(Unpacker().feed(bomb)))
    assert 0 < len(first) <= 64 * MIB


def test_a_window_of_gigabytes_is_refused() -> None:
    with pytest.raises(RequestError, match="zstd"):
        unpacked(b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00")


def test_all_bodies_together_are_bounded() -> None:
    bodies = Bodies(Limits(body_bytes=10 * MIB, bodies_bytes=15 * MIB))
    first, second = bodies.lease(), bodies.lease()
    first.take(10 * MIB)
    second.take(5 * MIB)
    with pytest.raises(RequestError, match="in a moment") as refused:
        second.take(1)
    assert refused.value.status == 429
    first.release()
    second.take(10 * MIB)
    second.release()
    assert bodies.held == 0


def test_the_largest_body_fits_whatever_the_machine() -> None:
    assert Limits(body_bytes=10**15).together == 10**15


def test_many_tiny_messages_are_refused_before_they_are_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "MOST_PARTS", 10_000)
    with pytest.raises(RequestError, match="parts") as refused:
        parts.check_parts(b"\x1a\x00" * parts.SMALL)
    assert refused.value.status == 413
    chunks = b"\x0a\x00" * parts.SMALL
    nested = pb.ForwardBackwardRequest(model_id="m").SerializeToString() + _field(0x1A, chunks)
    with pytest.raises(RequestError, match="parts"):
        parts.check_parts(nested)


def test_endless_shapes_are_refused() -> None:
    asked = pb.ForwardBackwardRequest(model_id="m" * parts.SMALL)
    asked.data.add().loss_fn_inputs["weights"].shape.extend([1] * 101)
    with pytest.raises(RequestError, match="dimensions"):
        parts.check_parts(asked.SerializeToString())


def test_large_honest_messages_pass() -> None:
    asked = pb.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="cross_entropy")
    for _ in range(100):
        datum = asked.data.add()
        datum.model_input.add().encoded_text.tokens = bytes(20_000)
        tensor = datum.loss_fn_inputs["target_tokens"]
        tensor.shape.extend((5000, 2))
        tensor.dense = bytes(80_000)
    body = asked.SerializeToString()
    assert len(body) > parts.SMALL
    parts.check_parts(body)
    parts.check_parts(body[:-5])  # what is cut off is for the parser to refuse


def test_a_million_mistakes_are_one() -> None:
    with pytest.raises(RequestError, match=r"tags\.0.*string\.$"):
        types.parse(types.CreateSession, b'{"tags": [' + b"1," * 100_000 + b"1]}")
    many = b",".join(b'"%d": 1' % i for i in range(2000))
    body = b'{"model_id": "m", "seq_id": 1, "user_metadata": {' + many + b"}}"
    with pytest.raises(RequestError, match="in 2000 places"):
        types.parse(types.SaveWeights, body)


@pytest.mark.parametrize("number", [2**64, -(2**64), 10**30])
def test_what_cannot_be_kept_is_refused(number: int) -> None:
    with pytest.raises(RequestError, match="64 bits"):
        types.parse(types.CreateSession, b'{"user_metadata": {"a": [%d]}}' % number)
    target = b'{"target": {"sampling_session_id": "s", "cloned_sampler_id": %d}}' % abs(number)
    with pytest.raises(RequestError, match="cloned_sampler_id"):
        types.parse(types.RetrieveFutures, target)
    cursor = b'{"target": {"sampling_session_id": "s"}, "prev_cursor": %d}' % number
    with pytest.raises(RequestError, match="prev_cursor"):
        types.parse(types.RetrieveFutures, cursor)


def _field(tag: int, content: bytes) -> bytes:
    size, length = bytearray(), len(content)
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes((tag, *size, length)) + content
