"""Training through bad weather ends as in good weather; and the weather is what it says it is."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.chaos import proxy as weather_proxy
from tests.chaos.proxy import DELAYED, KINDS, LOST_AFTER, LOST_BEFORE, LOST_WITHIN, Plan, running
from tests.chaos.weather import differences, service, train

WORDS = ("num_batches=3", "batch_size=8", "group_size=4", "save_every=2", "eval_size=10")


@pytest.mark.timeout(600)
def test_thirty_faults_in_three_steps_change_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=3, faults=30, rate=0.2)
    with service(tmp_path) as url:
        calm = train(tmp_path, url, "calm", WORDS)
        with running(url, plan) as proxy:
            disturbed = train(tmp_path, proxy, "disturbed", WORDS)
    assert differences(calm, disturbed) == []
    assert plan.done.total() == 30
    assert set(plan.done) == set(KINDS)
    assert len(calm.values) > 1000
    assert calm.values["metrics 1 reward"] != calm.values["metrics 3 reward"]


class Counting(BaseHTTPRequestHandler):
    """Answers what it was sent, and counts."""

    protocol_version = "HTTP/1.1"
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(body)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Counting.bodies = []
    monkeypatch.setattr(weather_proxy, "DELAY_SECONDS", 0.2)
    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def ask(url: str) -> tuple[int, dict[str, str], bytes]:
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    try:
        connection.request("POST", "/api/v1/asample", body=b"x" * 1000)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def only(kind: str) -> Plan:
    """One fault of that kind, then none."""
    plan = Plan(seed=0, faults=1, rate=1.0)
    plan._bags["asample"] = [kind]
    return plan


@pytest.mark.parametrize(
    ("kind", "status", "retry_after"),
    [("429", 429, None), ("429 + Retry-After", 429, "1"), ("500", 500, None), ("502", 502, None), ("503", 503, "1")],
)  # fmt: skip
def test_a_refusal_never_reaches_the_service(
    upstream: str, kind: str, status: int, retry_after: str | None
) -> None:
    with running(upstream, only(kind)) as url:
        answer, headers, _ = ask(url)
        assert (answer, headers.get("retry-after")) == (status, retry_after)
        assert Counting.bodies == []
        assert ask(url)[0] == 200


@pytest.mark.parametrize(
    ("kind", "error", "reached"),
    [
        (LOST_BEFORE, http.client.RemoteDisconnected, 0),
        (LOST_AFTER, http.client.RemoteDisconnected, 1),
        (LOST_WITHIN, http.client.IncompleteRead, 1),
    ],
)
def test_a_lost_connection(upstream: str, kind: str, error: type[Exception], reached: int) -> None:
    with running(upstream, only(kind)) as url:
        with pytest.raises((error, ConnectionResetError)):
            ask(url)
        assert len(Counting.bodies) == reached
        assert ask(url)[2] == b"x" * 1000


def test_a_delay_comes_before_an_answer_that_is_whole(upstream: str) -> None:
    with running(upstream, only(DELAYED)) as url:
        began = time.monotonic()
        assert ask(url)[2] == b"x" * 1000
        assert time.monotonic() - began >= 0.2


def test_a_plan_is_the_same_for_the_same_seed() -> None:
    def drawn(seed: int) -> list[str | None]:
        plan = Plan(seed, faults=30, rate=0.3)
        return [plan.draw(name) for _ in range(200) for name in ("asample", "optim_step")]

    assert drawn(1) == drawn(1) != drawn(2)
    assert sum(fault is not None for fault in drawn(1)) == 30
    assert set(filter(None, drawn(1))) == set(KINDS)
