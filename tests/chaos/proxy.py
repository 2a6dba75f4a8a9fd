"""An HTTP proxy that makes bad weather by a seeded plan: refusals, lost connections, delays.

`python -m tests.chaos.proxy --to http://127.0.0.1:7411` stands in front of a running service; its last
line, on SIGINT or SIGTERM, says what it did.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

DELAY_SECONDS = 2.0
HEAD_BYTES = 1 << 16

REFUSALS: dict[str, tuple[str, dict[str, str], str]] = {
    "429": (
        "429 Too Many Requests",
        {"content-type": "application/json"},
        '{"detail":"Too many requests, please slow down."}',
    ),
    "429 + Retry-After": (
        "429 Too Many Requests",
        {"content-type": "application/json", "retry-after": "1", "x-should-retry": "true"},
        '{"detail":"Rate limit exceeded. Retry after 1 second."}',
    ),
    "500": (
        "500 Internal Server Error",
        {"content-type": "application/json"},
        '{"detail":"Internal server error"}',
    ),
    # As a load balancer says them that cannot reach what is behind it: not JSON.
    "502": (
        "502 Bad Gateway",
        {"content-type": "text/html", "server": "cloudflare"},
        "<html><head><title>502 Bad Gateway</title></head><body>502 Bad Gateway</body></html>",
    ),
    "503": (
        "503 Service Unavailable",
        {"content-type": "text/plain", "retry-after": "1"},
        "upstream connect error or disconnect/reset before headers",
    ),
}
# What changes something on the service, by a few requests a step: these suffer more than their share.
CHANGES = (
    "create_session",
    "create_model",
    "forward_backward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
)
CHANGES_RATE = 0.4
LOST_BEFORE = "lost before the service"
LOST_AFTER = "lost after the service"
LOST_WITHIN = "lost within the answer"
DELAYED = f"{DELAY_SECONDS:g} s late"
KINDS = (*REFUSALS, LOST_BEFORE, LOST_AFTER, LOST_WITHIN, DELAYED)


@dataclass
class Plan:
    """Which request suffers what: by the seed, its endpoint, and how many came there before it.

    An endpoint meets every kind of fault before it meets one again.
    """

    seed: int
    faults: int  # no more of them than this
    rate: float  # share of requests that suffer
    requests: int = 0
    done: Counter[str] = field(default_factory=Counter[str])
    places: Counter[str] = field(default_factory=Counter[str])  # endpoints that suffered
    _sources: dict[str, random.Random] = field(default_factory=dict[str, random.Random])
    _bags: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def draw(self, endpoint: str) -> str | None:
        """The fault of the next request to that endpoint; None lets it pass."""
        self.requests += 1
        source = self._sources.setdefault(endpoint, random.Random(f"{self.seed}/{endpoint}"))
        rate = max(self.rate, CHANGES_RATE) if endpoint in CHANGES else self.rate
        if source.random() >= rate or self.done.total() >= self.faults:
            return None
        bag = self._bags.setdefault(endpoint, [])
        if not bag:
            bag.extend(KINDS)
            source.shuffle(bag)
        fault = bag.pop()
        self.done[fault] += 1
        self.places[endpoint] += 1
        return fault


@dataclass(frozen=True)
class Message:
    """A request or an answer, its body read to the end."""

    first: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    def to_bytes(self, connection: str) -> bytes:
        """On the wire, with a length instead of chunks."""
        dropped = ("connection", "keep-alive", "transfer-encoding", "content-length")
        kept = [(key, value) for key, value in self.headers if key.lower() not in dropped]
        kept += [("content-length", str(len(self.body))), ("connection", connection)]
        head = "\r\n".join([self.first, *(f"{key}: {value}" for key, value in kept)])
        return head.encode("latin-1") + b"\r\n\r\n" + self.body


async def read_message(reader: asyncio.StreamReader, *, to_the_end: bool) -> Message:
    """The next message; `to_the_end` of the connection when it does not say its length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers = [
        (name.strip(), value.strip()) for name, _, value in (li.partition(":") for li in lines)
    ]
    message = Message(first, headers, b"")
    if (message.header("transfer-encoding") or "").lower() == "chunked":
        body = await _read_chunks(reader)
    elif (length := message.header("content-length")) is not None:
        body = await reader.readexactly(int(length))
    else:
        body = await reader.read() if to_the_end else b""
    return Message(first, headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    while (await reader.readline()).strip():
        continue  # trailers
    return body


def endpoint_of(first: str) -> str:
    """The request's path without ids, so that all requests of one kind count together."""
    path = urllib.parse.urlsplit(first.split(" ")[1]).path.removeprefix("/api/v1/")
    return "/".join("*" if any(c.isdigit() for c in part) else part for part in path.split("/"))


class Proxy:
    """Passes requests on to one address, one after another on each connection, as the plan allows."""

    def __init__(self, upstream: str, plan: Plan) -> None:
        parts = urllib.parse.urlsplit(upstream)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._plan = plan
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=HEAD_BYTES)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._exchange(await read_message(reader, to_the_end=False), writer):
                continue
        except (OSError, EOFError):
            pass  # a side hung up, which the other one learns by our hanging up, too
        except asyncio.CancelledError:
            pass  # the end of the proxy
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _exchange(self, request: Message, writer: asyncio.StreamWriter) -> bool:
        """Answer one request in the way the plan wants; False when the connection is lost by it."""
        fault = self._plan.draw(endpoint_of(request.first))
        if fault in REFUSALS:
            status, headers, body = REFUSALS[fault]
            refusal = Message(f"HTTP/1.1 {status}", list(headers.items()), body.encode())
            await _send(writer, refusal.to_bytes("keep-alive"))
            return True
        if fault == LOST_BEFORE:
            return False
        if fault == DELAYED:
            await asyncio.sleep(DELAY_SECONDS)
        answer = await self._pass_on(request)
        if fault == LOST_AFTER:
            return False
        data = answer.to_bytes("keep-alive")
        if fault == LOST_WITHIN:
            # At least the head and never the whole: the reader knows that something is missing.
            await _send(writer, data[: len(data) - max(len(answer.body) // 2, 1)])
            return False
        await _send(writer, data)
        return True

    async def _pass_on(self, request: Message) -> Message:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=HEAD_BYTES)
        try:
            await _send(writer, request.to_bytes("close"))
            return await read_message(reader, to_the_end=True)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@contextmanager
def running(upstream: str, plan: Plan) -> Iterator[str]:
    """The address of a proxy in a thread of its own, until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    proxy = Proxy(upstream, plan)
    try:
        asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(30)
        yield proxy.url
    finally:
        asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _stand_alone(asked: argparse.Namespace) -> None:
    plan = Plan(asked.seed, asked.faults, asked.rate)
    proxy = Proxy(asked.to, plan)
    await proxy.start(asked.port)
    print(f"{proxy.url} -> {asked.to}", flush=True)
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    await over.wait()
    await proxy.stop()
    print(json.dumps({"requests": plan.requests, "faults": plan.done, "places": plan.places}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", required=True, help="the service, such as http://127.0.0.1:7411")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.1)
    asyncio.run(_stand_alone(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
