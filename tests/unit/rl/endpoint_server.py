"""A small local server that answers like an OpenAI-compatible endpoint, in whatever way a test asks for."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tinsmith.rl.endpoint_http import Endpoint

KEY = "sk-very-secret"


@dataclass(frozen=True)
class Asked:
    """One request; `number` counts those before it."""

    number: int
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


Answer = Callable[[Asked], tuple[Any, ...]]  # status, JSON or text, and perhaps headers


def said(text: str, *, tokens: int | None = None, why: str = "stop") -> tuple[int, dict[str, Any]]:
    body: dict[str, Any] = {"choices": [{"message": {"content": text}, "finish_reason": why}]}
    return 200, body if tokens is None else {**body, "usage": {"completion_tokens": tokens}}


@contextmanager
def endpoint_server(answer: Answer) -> Iterator[tuple[str, list[Asked]]]:
    """The address of a server and the requests that came to it."""
    asked: list[Asked] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
            with lock:
                request = Asked(len(asked), self.path, dict(self.headers), body)
                asked.append(request)
            self._send(*answer(request))

        def do_GET(self) -> None:
            request = Asked(-1, self.path, dict(self.headers), {})
            status, body, *_ = answer(request)
            self._send(
                status, body if status != 200 else {"data": [{"id": "small"}, {"id": "big"}]}
            )

        def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**(headers or {}), "content-length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@asynccontextmanager
async def asking(
    answer: Answer, key: str | None = KEY, **settings: Any
) -> AsyncIterator[tuple[Endpoint, list[Asked]]]:
    """A client of such a server; it never really waits."""

    async def at_once(seconds: float) -> None:
        return None

    with endpoint_server(answer) as (url, asked):
        made = {"requests": 4, "sleep": at_once, **settings}
        async with Endpoint(url, "small", key, **made) as endpoint:
            yield endpoint, asked
