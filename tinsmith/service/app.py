"""The FastAPI application: routes, error answers, start and end of the service."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

import tinsmith
from tinsmith.errors import RequestError, ServiceError, StorageError, TinsmithError
from tinsmith.service.access import Access, Tokens
from tinsmith.service.core import Service
from tinsmith.service.limits import Bodies, Limits
from tinsmith.service.routes import (
    auth,
    checkpoints,
    download,
    futures,
    meta,
    models,
    monitor,
    old,
    openai,
    openapi,
    rest,
    sampling,
    sessions,
    training,
    weights,
)
from tinsmith.service.routes.http import answer
from tinsmith.service.store.keys import KeyRing
from tinsmith.service.watch import Watch

LONGEST_DETAIL = 2000  # characters; a sentence may quote what was sent


class _Touch:
    """Tells the service that somebody asked for something."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != "/metrics":  # watching is not using
            self._service.touch()
        await self._app(scope, receive, send)


async def _known_error(request: Request, error: Exception) -> Response:
    """A sentence with its status. The SDK repeats 5xx for minutes, so only what may pass gets one."""
    if isinstance(error, RequestError):
        status = error.status
    else:
        status = 503 if isinstance(error, (ServiceError, StorageError)) else 400
    return answer({"detail": _cut(str(error))}, status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.scope['path']}: {error.detail}"
    return answer({"detail": _cut(detail)}, error.status_code)


def _cut(detail: str) -> str:
    whole = len(detail) <= LONGEST_DETAIL
    # What cannot be written as UTF-8 may still be quoted.
    return (detail if whole else f"{detail[:LONGEST_DETAIL]} ...").encode(errors="replace").decode()


def create_app(
    service: Service,
    keys: KeyRing | None = None,
    *,
    limits: Limits | None = None,
    hosts: frozenset[str] | None = None,
) -> FastAPI:
    """The application that serves `service`; it starts and closes it. With `keys` every request needs
    one; with `hosts` the service answers to these names only."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    tokens = Tokens(keys)
    bodies = Bodies(limits or Limits())
    # The busiest first: routes are tried in order.
    rooms = (
        *(futures, sampling, training, sessions, weights, models, meta, rest, checkpoints),
        *(download, openai, old),
    )
    routes = [route for room in rooms for route in room.routes(service)]
    routes += [*auth.routes(keys, tokens.issue), *monitor.routes(service, bodies)]
    routes += openapi.routes(routes)
    app = FastAPI(
        title="tinsmith",
        version=tinsmith.__version__,
        lifespan=lifespan,
        routes=routes,
        openapi_url=None,
    )
    app.add_exception_handler(TinsmithError, _known_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(_Touch, service=service)
    app.add_middleware(Access, keys=keys, tokens=tokens, hosts=hosts)
    paths = {route.endpoint: route.path for route in routes}
    app.add_middleware(Watch, bodies=bodies, paths=paths)  # the last is the outermost
    return app
