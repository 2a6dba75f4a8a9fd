"""Sends many requests at once and keeps book of what came back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import httpx

from tests.fuzz.seeds import Request

AT_ONCE = 12
TIMES = httpx.Timeout(30.0, read=5.0)  # a poll that still waits after so long is left alone


@dataclass
class Report:
    sent: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def note(self, request: Request, status: str, detail: str) -> None:
        self.sent += 1
        self.statuses[status] += 1
        self.origins[request.origin] += 1
        # A fault of the service answers 400, since the SDK would repeat a 5xx; it says so in words.
        if status.startswith("5") or "the service failed" in detail or status == "no answer":
            shown = request.body[:300]
            self.failures.append(
                f"{request.origin} {request.method} {request.path} {request.headers} {shown!r}"
                f" -> {status} {detail[:500]}"
            )


def attack(url: str, requests: Iterable[Request], report: Report) -> None:
    asyncio.run(_attack(url, iter(requests), report))


async def _attack(url: str, requests: Iterator[Request], report: Report) -> None:
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=TIMES, limits=limits) as client:

        async def worker() -> None:
            for request in requests:  # shared: each is taken once
                await _send(client, request, report)
                await asyncio.sleep(0)

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def _send(client: httpx.AsyncClient, request: Request, report: Report) -> None:
    headers = {name: value.encode("latin-1", "replace") for name, value in request.headers.items()}
    try:
        built = client.build_request(
            request.method, request.path, content=request.body, headers=headers
        )
    except (httpx.InvalidURL, ValueError):
        return  # what this client cannot even say
    try:
        answer = await client.send(built)
    except httpx.ReadTimeout:
        report.note(request, "waits", "")
    except (httpx.WriteTimeout, httpx.ConnectTimeout) as error:
        report.note(
            request, "no answer", f"{type(error).__name__}: the server was busy for too long"
        )
    except httpx.LocalProtocolError:
        return
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError) as error:
        # A refused body may end with the connection; that it is the server that ended is seen later.
        report.note(request, "closed", str(error))
    except httpx.ConnectError as error:
        report.note(request, "no answer", str(error))
    else:
        report.note(request, str(answer.status_code), answer.text)
