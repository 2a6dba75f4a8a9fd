"""How the service does: counters, queues and memory in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.service import metrics
from tinsmith.service.core import Service
from tinsmith.service.limits import Bodies
from tinsmith.service.metrics import Gauge
from tinsmith.service.routes.http import route


def routes(service: Service, bodies: Bodies) -> list[Route]:
    async def page(request: Request) -> Response:
        text = metrics.page([*_process(bodies), *_service(service)])
        return Response(text, media_type=metrics.CONTENT_TYPE)

    gives = {"text/plain": "Prometheus' text format, version 0.0.4."}
    return [route("GET", "metrics", page, prefix="", does="Counters and gauges.", gives=gives)]


def _service(service: Service) -> Iterator[Gauge]:
    counts = service.counts()
    for kind in ("training", "samples"):
        yield Gauge("tinsmith_queued_ops", counts[f"waiting_{kind}"], {"kind": kind})
    yield Gauge("tinsmith_samples_in_flight", counts["sampling"])
    yield Gauge("tinsmith_sessions", counts["sessions"])
    for state in ("resident", "parked"):
        yield Gauge("tinsmith_models", counts[f"models_{state}"], {"state": state})
    for what, size in service.memory().items():
        yield Gauge("tinsmith_memory_bytes", size, {"what": what})


def _process(bodies: Bodies) -> Iterator[Gauge]:
    process = psutil.Process()
    yield Gauge("tinsmith_requests_in_flight", bodies.requests)
    yield Gauge("tinsmith_body_bytes", bodies.held)
    yield Gauge("tinsmith_resident_memory_bytes", process.memory_info().rss)
    yield Gauge("tinsmith_start_time_seconds", process.create_time())
