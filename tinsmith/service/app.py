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
from tinsmith.errors import RequestError, ServiceError, TinsmithError
from tinsmith.service.core import Service
from tinsmith.service.routes import (
    futures,
    meta,
    models,
    rest,
    sampling,
    sessions,
    training,
    weights,
)
from tinsmith.service.routes.http import answer


class _Touch:
    """Tells the service that somebody asked for something."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._service.touch()
        await self._app(scope, receive, send)


async def _known_error(request: Request, error: Exception) -> Response:
    """A sentence with its status. The SDK repeats 5xx for minutes, so only what may pass gets one."""
    if isinstance(error, RequestError):
        status = error.status
    else:
        status = 503 if isinstance(error, ServiceError) else 400
    return answer({"detail": str(error)}, status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}: {error.detail}"
    return answer({"detail": detail}, error.status_code)


async def _bug(request: Request, error: Exception) -> Response:
    """Not a server error by its status: the SDK would repeat the request that caused it for minutes."""
    return answer({"detail": f"the service failed: {type(error).__name__}: {error}"}, 400)


def create_app(service: Service) -> FastAPI:
    """The application that serves `service`; it starts and closes it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    # The busiest first: routes are tried in order.
    rooms = (futures, sampling, training, sessions, weights, models, meta, rest)
    app = FastAPI(
        title="tinsmith",
        version=tinsmith.__version__,
        lifespan=lifespan,
        routes=[route for room in rooms for route in room.routes(service)],
        openapi_url=None,
    )
    app.add_exception_handler(TinsmithError, _known_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    app.add_middleware(_Touch, service=service)
    return app
