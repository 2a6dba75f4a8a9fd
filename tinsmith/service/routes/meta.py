"""Health, capabilities, the SDK's settings and its telemetry (which goes nowhere)."""

from __future__ import annotations

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import tinsmith
from tinsmith.errors import TinsmithError
from tinsmith.service.core import Service
from tinsmith.service.engine.backend import ModelInfo
from tinsmith.service.engine.sources import served_by_default
from tinsmith.service.routes.http import answer, get, limits_of, post, read_json
from tinsmith.service.wire.compat import DYNAMIC_CONFIG, client_settings


async def served_models(service: Service) -> list[ModelInfo]:
    """Models that work without a download, and those that were asked for; each once."""
    if service.default_model is not None:
        await service.describe(service.default_model)
        for name in served_by_default():
            with suppress(TinsmithError):  # one that cannot be read is not offered
                await service.describe(name)
    return list({info.name: info for info in service.known_models()}.values())


def routes(service: Service) -> list[Route]:
    async def healthz(request: Request) -> Response:
        health = service.health()
        if not service.token:  # keys are asked for, and this answer is for everybody
            return answer({"status": health["status"], "version": tinsmith.__version__})
        return answer({**health, "version": tinsmith.__version__, "token": service.token})

    async def capabilities(request: Request) -> Response:
        models = [
            {
                "model_name": info.name,
                "max_context_length": info.max_context,
                "trainable": True,
                "sampleable": True,
            }
            for info in await served_models(service)
        ]
        return answer({"supported_models": models})

    async def client_config(request: Request) -> Response:
        await read_json(request)
        return answer(client_settings(limits_of(request).body_bytes))

    async def dynamic_config(request: Request) -> Response:
        await read_json(request)
        return answer(DYNAMIC_CONFIG)

    async def telemetry(request: Request) -> Response:
        await read_json(request)
        return answer({"status": "accepted"})

    return [
        get("healthz", healthz, does="Whether the service is well."),
        get("get_server_capabilities", capabilities, does="Which base models there are."),
        post("client/config", client_config, does="How the SDK should speak to this service."),
        post("client/dynamic_config", dynamic_config, does="The same, as it may change."),
        post("telemetry", telemetry, does="Taken and thrown away."),
    ]
