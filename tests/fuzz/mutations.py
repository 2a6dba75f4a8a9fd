"""Malformed requests made from good ones: flipped bits, cut ends, lies about sizes, bombs, wrong labels."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import zstandard
from tinker.proto import tinker_public_pb2 as pb

from tests.fuzz.seeds import API, JSON, PROTOBUF, Request, Things, message

NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400),
    *(0.5, -0.0, 1e-320, 1e308, float("inf"), float("nan")),
    *("", "x", "\0", "\ud800", "é" * 9, "x" * 100_000, "../../etc/passwd", "tinker://", "%00"),
    *("tinker://a/weights/../b", "'; DROP TABLE keys; --", "1" * 5000, "\n\r\x1b[2J"),
    *([], {}, [[]], [None], [-1], [2**40], {"": None}, [0.5], ["a"], [{}] * 300),
)
CONTENT_TYPES = (
    JSON,
    PROTOBUF,
    "text/plain",
    "",
    "application/json; charset=utf-7",
    "multipart/form-data",
)
ENCODINGS = ("zstd", "gzip", "br", "zstd, zstd", "identity", "ZSTD", "\x7f")


def malformed(
    seeds: list[Request], things: Things, count: int, rng: random.Random
) -> Iterator[Request]:
    """`count` requests; the kinds take turns."""
    kinds = (_flip, _cut, _splice, _nasty_json, _nasty_json, _nasty_proto, _mislabel, _bad_zstd)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        yield replace(kind(seeds, things, rng), origin=kind.__name__.strip("_"))


def _flip(seeds: list[Request], things: Things, rng: random.Random) -> Request:
    seed = rng.choice(seeds)
    body = bytearray(seed.body)
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        if body:
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return replace(seed, body=bytes(body))


def _cut(seeds: list[Request], things: Things, rng: random.Random) -> Request:
    seed = rng.choice(seeds)
    return replace(seed, body=seed.body[: rng.randrange(len(seed.body) + 1)])


def _splice(seeds: list[Request], things: Things, rng: random.Random) -> Request:
    """Pieces of two requests, repeated or swapped."""
    seed, other = rng.choice(seeds), rng.choice(seeds)
    at, start = rng.randrange(len(seed.body) + 1), rng.randrange(len(other.body) + 1)
    piece = other.body[start : start + rng.randrange(200)] * rng.choice((1, 1, 3, 50))
    return replace(seed, body=seed.body[:at] + piece + seed.body[at + rng.randrange(50) :])


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield from _places(inner, (*place, key))


def _nasty_json(seeds: list[Request], things: Things, rng: random.Random) -> Request:
    """One to three values of a good request replaced, removed or renamed."""
    seed = rng.choice([one for one in seeds if one.headers.get("content-type") == JSON])
    value = json.loads(seed.body)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        place = rng.choice(list(_places(value)))
        if not place:
            continue
        inner = value
        for key in place[:-1]:
            inner = inner[key]
        if isinstance(inner, dict) and rng.random() < 0.15:
            inner[rng.choice(("", "x", "type"))] = inner.pop(place[-1])
        else:
            inner[place[-1]] = copy.deepcopy(rng.choice(NASTY))
    text = json.dumps(value)
    if rng.random() < 0.02:
        text = '{"user_metadata": ' + "[" * rng.choice((150, 1000, 100_000)) + "}"
    if rng.random() < 0.05:
        text = text.replace("1000000", str(rng.choice((0, 2, 3, 2**62))))
    return replace(seed, body=text.encode("utf-8", "surrogatepass"))


def _nasty_proto(seeds: list[Request], things: Things, rng: random.Random) -> Request:
    """A well-formed message that says impossible things."""
    model = things.model if rng.random() < 0.9 else rng.choice(("", "x", things.session))
    asked = message(
        model, rng.choice((-1, 0, 1, 2, 3, 1_000_000, 2**31 - 1)), rng.choice((0, 1, 3))
    )
    asked.loss_fn = rng.choice(("cross_entropy", "ppo", "gspo", "dro", "custom", "\0", ""))
    asked.forward_only = rng.random() < 0.5
    if rng.random() < 0.3:
        asked.loss_fn_config["beta"] = rng.choice((float("nan"), -1.0, 1e308))
        asked.loss_fn_config_v2["loss_id"].text = "x"
    for datum in asked.data:
        if rng.random() < 0.3:
            datum.model_input.add()
        if rng.random() < 0.3:
            datum.model_input[0].encoded_text.tokens = _integers(rng)
        names = ("target_tokens", "weights", "logprobs", "advantages", "sequence_ratio_mask", "")
        _nasty_tensor(datum.loss_fn_inputs[rng.choice(names)], rng)
    body = asked.SerializeToString()
    if rng.random() < 0.1:  # a field that claims to be longer than anything
        lengths = (b"\xff\xff\xff\xff\x07", b"\xff" * 9 + b"\x01", b"\xff\xff\xff\x7f")
        body += bytes([rng.choice((0x1A, 0x0A, 0x22, 0x3A))]) + rng.choice(lengths)
    return Request("POST", f"{API}/forward_backward", body, {"content-type": PROTOBUF})


def _integers(rng: random.Random) -> bytes:
    values = [rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 100_000)) for _ in range(rng.randrange(9))]
    return struct.pack(f"<{len(values)}i", *values) + b"\0" * rng.randrange(3)


def _nasty_tensor(tensor: pb.Tensor, rng: random.Random) -> None:
    tensor.dtype = rng.choice((0, 1, 2, 3, 4))
    del tensor.shape[:]
    sizes = (0, 1, 2, 5, -1, 7, 2**31, 2**62, 10_000_000)
    tensor.shape.extend(rng.choice(sizes) for _ in range(rng.choice((0, 1, 2, 2, 3))))
    if rng.random() < 0.5:
        tensor.dense = rng.randbytes(rng.choice((0, 1, 7, 8, 40, 56)))
        return
    tensor.sparse_csr.values = rng.randbytes(rng.choice((0, 8, 40)))
    tensor.sparse_csr.crow_indices = _longs(rng)
    tensor.sparse_csr.col_indices = _longs(rng)


def _longs(rng: random.Random) -> bytes:
    values = [rng.choice((0, 1, 5, -1, 2**62, -(2**63))) for _ in range(rng.randrange(7))]
    return struct.pack(f"<{len(values)}q", *values)


def _mislabel(seeds: list[Request], things: Things, rng: random.Random) -> Request:
    """A good body under a wrong label, to a wrong place or by a wrong method."""
    seed = rng.choice(seeds)
    choice = rng.randrange(4)
    if choice == 0:
        return replace(seed, headers=seed.headers | {"content-type": rng.choice(CONTENT_TYPES)})
    if choice == 1:
        return replace(seed, headers=seed.headers | {"content-encoding": rng.choice(ENCODINGS)})
    if choice == 2:
        return replace(seed, path=rng.choice(seeds).path)
    odd = (
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/v1//",
        f"{API}/samplers/" + "a" * 3000,
        "/%ff%fe",
        "/\u0130",
    )
    path = rng.choice((seed.path, *odd))
    return replace(seed, method=rng.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS")), path=path)


def _bad_zstd(seeds: list[Request], things: Things, rng: random.Random) -> Request:
    seed = rng.choice(seeds)
    frame = bytearray(zstandard.compress(seed.body))
    choice = rng.randrange(6)
    if choice == 0:
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
    elif choice == 1:
        frame = frame[: rng.randrange(len(frame))]
    elif choice == 2:
        frame += bytes(frame)
    elif choice == 3:
        frame += b"\x50\x2a\x4d\x18" + struct.pack("<I", rng.choice((0, 4, 2**32 - 1))) + b"abcd"
    elif choice == 4:  # a frame that wants a window of 2 GiB
        frame = bytearray(b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00")
    else:
        frame = bytearray(rng.randbytes(rng.randrange(1, 60)))
    headers = seed.headers | {"content-encoding": "zstd"}
    return replace(seed, body=bytes(frame), headers=headers)


def bombs() -> Iterator[Request]:
    """Small on the wire, large if believed: a gigabyte and more each."""
    proto = {"content-type": PROTOBUF}
    packed = proto | {"content-encoding": "zstd"}
    target = f"{API}/forward_backward"
    compressor = zstandard.ZstdCompressor(level=1)
    # Blocks of four bytes, "zero, 128 KiB of it": two gigabytes.
    zeros = b"\x28\xb5\x2f\xfd\x00\x48" + b"\x02\x00\x10\x00" * 16_000 + b"\x01\x00\x00"
    data = compressor.compress(b"\x1a\x00" * 50_000_000)
    chunks = b"\x1a" + _varint(60_000_000) + b"\x0a\x00" * 30_000_000
    shape = b"\x20\x00" * 4_000_000
    tensor = b"\x12" + _varint(len(shape)) + shape
    entry = b"\x12" + _varint(len(tensor)) + tensor
    sized = b"\x1a" + _varint(len(entry)) + entry
    for body in (zeros, data, compressor.compress(chunks), compressor.compress(sized)):
        yield Request("POST", target, body, packed, "bombs")
    yield Request("POST", f"{API}/asample", zeros, packed | {"content-type": JSON}, "bombs")
    yield Request("POST", target, b"\x1a\x00" * 5_000_000, proto, "bombs")
    plain = {"content-type": JSON}
    empty = b'{"prompt": {"chunks": [' + b"{}," * 3_000_000 + b"{}]}}"
    nested = b'{"user_metadata": ' + b"[" * 8_000_000
    numbers = b'{"tags": [' + b"1," * 4_000_000 + b"1]}"
    long = b'{"session_id": "' + b"a" * 20_000_000 + b'"}'
    for path, body in (
        ("asample", empty),
        ("create_session", nested),
        ("create_session", numbers),
        ("session_heartbeat", long),
        ("forward_backward", empty),
    ):
        yield Request("POST", f"{API}/{path}", body, plain, "bombs")
    yield Request("POST", f"{API}/create_session", b"", plain | {"x-filler": "a" * 40_000}, "bombs")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
