"""Sizes, slowness and crowds are bounded at the door; what happens there can be watched."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
import tinker
import zstandard

from tests.contract.conftest import BackendFactory, Running, serving
from tests.contract.data import datum, prompt
from tinsmith.service import protocol
from tinsmith.service.app import create_app
from tinsmith.service.limits import MIB, Limits
from tinsmith.service.routes import futures, http
from tinsmith.settings import EMBEDDED_MODEL

LIMITS = Limits(body_bytes=MIB, data_bytes=MIB // 2, json_bytes=MIB // 4, bodies_bytes=MIB)
PROTOBUF = {"content-type": "application/x-protobuf"}
ZSTD = {"content-encoding": "zstd"}


@pytest.fixture(scope="module")
def small(
    backend_factory: BackendFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server that takes little."""
    directory = tmp_path_factory.mktemp("small")
    with serving(
        backend_factory(), directory, make_app=lambda service: create_app(service, limits=LIMITS)
    ) as running:
        yield running


def post(running: Running, path: str, content: bytes | Iterator[bytes], **headers: str) -> int:
    url = f"{running.url}/api/v1/{path}"
    answer = httpx.post(url, content=content, headers=headers, timeout=60)
    assert answer.status_code == 200 or answer.json()["detail"]
    return answer.status_code


def connect(running: Running) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    # What is left unread must not keep the test waiting at the end.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return connection


def value(running: Running, name: str) -> float:
    page = httpx.get(f"{running.url}/metrics").text
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def test_bodies_are_bounded(small: Running) -> None:
    assert post(small, "forward_backward", b"x" * (MIB + 1), **PROTOBUF) == 413
    assert post(small, "forward_backward", b"\xff" * MIB, **PROTOBUF) == 422
    assert post(small, "asample", b" " * (MIB // 2 + 1)) == 413
    assert post(small, "create_session", b" " * (MIB // 4 + 1)) == 413
    assert post(small, "create_session", b'{"tags": []}' + b" " * 1000) == 200


def test_bodies_that_do_not_say_their_size_are_bounded(small: Running) -> None:
    assert post(small, "create_session", iter([b" " * MIB] * 3)) == 413
    assert post(small, "create_session", iter([b'{"tags"', b": []}"])) == 200


def test_compressed_bodies_are_bounded_by_what_they_become(small: Running) -> None:
    bomb = zstandard.compress(bytes(50 * MIB))
    assert len(bomb) < 10_000
    assert post(small, "forward_backward", bomb, **PROTOBUF, **ZSTD) == 413
    good = zstandard.compress(b'{"tags": []}')
    assert post(small, "create_session", good, **ZSTD) == 200
    assert post(small, "create_session", good + good, **ZSTD) == 422
    assert post(small, "create_session", good[:-2], **ZSTD) == 400
    assert post(small, "create_session", b"x", **ZSTD) == 400
    assert post(small, "create_session", b"{}", **{"content-encoding": "gzip"}) == 415


def test_a_crowd_of_bodies_is_asked_to_come_back(small: Running) -> None:
    """Half a body keeps its place; what does not fit beside it is refused for a moment."""
    with closing(connect(small)) as first:
        head = f"POST /api/v1/forward_backward HTTP/1.1\r\nhost: x\r\ncontent-length: {MIB}\r\n"
        first.sendall(f"{head}content-type: {PROTOBUF['content-type']}\r\n\r\n".encode())
        first.sendall(bytes(MIB - 100_000))
        while value(small, "tinsmith_body_bytes") < MIB - 100_000:
            pass
        answer = httpx.post(f"{small.url}/api/v1/asample", content=b" " * 200_000)
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        first.sendall(bytes(100_000))
        assert b" 422 " in first.recv(4096)
    assert value(small, "tinsmith_body_bytes") == 0
    assert post(small, "asample", b" " * 200_000) == 422


def test_bodies_that_come_too_slowly_are_given_up(
    small: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "SECONDS_TO_START", 0.2)
    with closing(connect(small)) as slow:
        slow.sendall(
            b"POST /api/v1/create_session HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
        )
        answer = slow.recv(4096)
        assert b" 408 " in answer
        assert b"connection: close" in answer
        assert b"send it faster" in answer
        assert slow.recv(4096) == b""
    assert value(small, "tinsmith_body_bytes") == 0


def test_headers_are_bounded(small: Running) -> None:
    with closing(connect(small)) as endless:
        endless.sendall(b"GET /api/v1/healthz HTTP/1.1\r\n")
        answer = b""
        endless.settimeout(0.05)
        for _ in range(2000):
            try:
                endless.sendall(b"x-filler: " + b"a" * 4000 + b"\r\n")
                answer = endless.recv(4096)
                break
            except TimeoutError:
                continue
            except OSError:
                break  # closed while we were still talking
        assert answer == b"" or b" 431 " in answer
    assert httpx.get(f"{small.url}/api/v1/healthz").status_code == 200


@pytest.mark.parametrize("said", [b"", b"GET /api/v1/healthz HTTP/1.1\r\nhost:"])
def test_the_silent_are_not_waited_for(
    small: Running, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    with closing(connect(small)) as silent:
        silent.sendall(said)
        assert silent.recv(4096) == b""


def test_polls_keep_their_connection(small: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 408 that means "not yet" is no reason to hang up, as one for a slow body is."""
    monkeypatch.setattr(futures, "LONG_POLL_SECONDS", 0.05)
    trainer = small.client().create_lora_training_client(EMBEDDED_MODEL, rank=2)
    early = {"model_id": trainer.model_id, "seq_id": 9}  # waits for its predecessors
    with httpx.Client(base_url=f"{small.url}/api/v1") as client:
        future = client.post("/optim_step", json=early).json()["request_id"]
        answer = client.post("/retrieve_future", json={"request_id": future})
        assert answer.status_code == 408
        assert "connection" not in answer.headers


def test_the_sdk_is_told_how_much_is_taken(small: Running) -> None:
    answer = httpx.post(f"{small.url}/api/v1/client/config", json={"sdk_version": "0.36.0"})
    assert answer.json()["fwdbwd_max_chunk_bytes_count"] == MIB * 3 // 4
    client = small.client()
    trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=2)
    many = [datum([72, 101] * 100) for _ in range(700)]  # more than a MiB together
    assert len(trainer.forward(many, "cross_entropy").result().loss_fn_outputs) == 700


# watching


def test_requests_have_ids(server: Running) -> None:
    url = f"{server.url}/api/v1/healthz"
    given = httpx.get(url, headers={"X-Request-Id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    made = {httpx.get(url, headers={"X-Request-Id": "not sane"}).headers["x-request-id"]}
    made.add(httpx.get(url).headers["x-request-id"])
    made.add(httpx.get(f"{server.url}/nowhere").headers["x-request-id"])
    assert len(made) == 3


def test_work_can_be_watched(server: Running, trainer: tinker.TrainingClient) -> None:
    route = 'method="POST",route="/api/v1/forward_backward",status="200"'
    before = value(server, f"tinsmith_requests_total{{{route}}}")
    trainer.forward_backward([datum()], "cross_entropy").result()
    sampler = trainer.save_weights_and_get_sampling_client()
    sampler.sample(prompt(), 1, tinker.SamplingParams(max_tokens=2, stop=[])).result()
    assert value(server, f"tinsmith_requests_total{{{route}}}") == before + 1
    page = httpx.get(f"{server.url}/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "tinsmith_resident_memory_bytes" in page.text
    assert 'tinsmith_models{state="resident"}' in page.text
    httpx.get(f"{server.url}/a/stranger's/path?q=1")
    assert "stranger" not in httpx.get(f"{server.url}/metrics").text


def test_the_document_describes_every_route(server: Running) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    described = document["paths"]
    assert "application/x-protobuf" in str(described["/api/v1/forward_backward"]["post"])
    for path, operations in described.items():
        for operation in operations.values():
            assert operation["summary"], path
            assert operation["responses"]["422"]
    assert "SampleRequest" in document["components"]["schemas"]
