"""Around every request: its id, its line in the log, its place in the metrics, its share of memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinsmith.service import logs, metrics
from tinsmith.service.limits import BODY, Bodies
from tinsmith.service.routes.http import PREFIX, answer

log = logging.getLogger(__name__)

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
UNKNOWN = "unknown"
RETRY_SECONDS = "1"
# Asked all the time by every client: of interest to nobody but a debugger.
QUIET = frozenset(
    {f"{PREFIX}/{path}" for path in ("healthz", "session_heartbeat", "telemetry")}
    | {f"{PREFIX}/retrieve_future", f"{PREFIX}/retrieve_futures", "/metrics"}
)
GONE = "gone"  # the status of a request whose sender did not wait for the answer


class Watch:
    """The outermost layer; what goes wrong below ends here, in the log and in an answer."""

    def __init__(self, app: ASGIApp, bodies: Bodies, paths: Mapping[object, str]) -> None:
        self._app = app
        self._bodies = bodies
        self._paths = paths  # endpoint -> the path of its route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        facts = logs.RequestFacts(logs.request_id(_header(scope, b"x-request-id")))
        logs.REQUEST.set(facts)
        lease = scope[BODY] = self._bodies.lease()
        status = 0

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = facts.id
                if status == 429 and "retry-after" not in headers:
                    headers["retry-after"] = RETRY_SECONDS
                if status in (408, 413) and not lease.whole:
                    # The rest of the body is still on its way: only a new connection is free of it.
                    headers["connection"] = "close"
            await send(message)

        start = time.perf_counter()
        self._bodies.requests += 1
        outcome = ""
        try:
            await self._app(scope, receive, tell)
        except ClientDisconnect:
            outcome = GONE
        except Exception as error:
            route = self._route(scope)
            metrics.count("tinsmith_failed_requests_total", route=route)
            log.exception("a request failed", extra={"method": scope["method"], "route": route})
            # Not a server error by its status: the SDK would repeat what caused it for minutes.
            detail = f"the service failed: {type(error).__name__} (request {facts.id})."
            if not status:
                await answer({"detail": detail}, 400)(scope, receive, tell)
        finally:
            self._bodies.requests -= 1
            lease.release()
            self._record(scope, outcome or str(status or GONE), time.perf_counter() - start)

    def _record(self, scope: Scope, status: str, seconds: float) -> None:
        route = self._route(scope)
        method = scope["method"] if scope["method"] in METHODS else "other"
        metrics.count("tinsmith_requests_total", method=method, route=route, status=status)
        metrics.observe("tinsmith_request_seconds", seconds, route=route)
        level = logging.DEBUG if route in QUIET else logging.INFO
        if log.isEnabledFor(level):
            path = scope["path"][: logs.LONGEST]
            extra = {"route": route, "status": status, "seconds": round(seconds, 6)}
            log.log(level, "%s %s", method, path, extra=extra)

    def _route(self, scope: Scope) -> str:
        return self._paths.get(scope.get("endpoint"), UNKNOWN)


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == wanted), None)
