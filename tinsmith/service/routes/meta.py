"""Health, capabilities, the SDK's settings and its telemetry (which goes nowhere)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import tinsmith
from tinsmith.service.core import Service
from tinsmith.service.routes.http import answer, get, post, read_body
from tinsmith.service.wire.compat import CLIENT_CONFIG, DYNAMIC_CONFIG


def routes(service: Service) -> list[Route]:
    async def healthz(request: Request) -> Response:
        return answer({"status": "ok", "token": service.token, "version": tinsmith.__version__})

    async def capabilities(request: Request) -> Response:
        if service.default_model is not None:
            await service.describe(service.default_model)
        models = [
            {
                "model_name": info.name,
                "max_context_length": info.max_context,
                "trainable": True,
                "sampleable": True,
            }
            for info in service.known_models()
        ]
        return answer({"supported_models": models})

    async def client_config(request: Request) -> Response:
        await read_body(request)
        return answer(CLIENT_CONFIG)

    async def dynamic_config(request: Request) -> Response:
        await read_body(request)
        return answer(DYNAMIC_CONFIG)

    async def telemetry(request: Request) -> Response:
        await read_body(request)
        return answer({"status": "accepted"})

    return [
        get("healthz", healthz),
        get("get_server_capabilities", capabilities),
        post("client/config", client_config),
        post("client/dynamic_config", dynamic_config),
        post("telemetry", telemetry),
    ]
