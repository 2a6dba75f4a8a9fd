"""Calls that only old SDKs make, and known calls that are refused with what to do instead."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.service.core import Service
from tinsmith.service.routes.http import answer, post, read
from tinsmith.service.wire import rest_types

REFUSED = {
    "create_custom_loss": "losses are not taken as graphs; use forward_backward_custom, which runs "
    "your loss on your side and works with this service.",
    "sample": "sampling without a session is not there; use the tinker SDK from 0.3 on, which calls "
    "asample.",
}


def _refusal(name: str, sentence: str) -> Route:
    async def refuse(request: Request) -> Response:
        return answer({"detail": sentence}, 400)

    return post(name, refuse, does=f"Refused: {sentence}")


def routes(service: Service) -> list[Route]:
    async def unload_model(request: Request) -> Response:
        asked, _ = await read(request, rest_types.UnloadModel)
        future_id = await service.unload(asked.model_id)
        return answer({"request_id": future_id, "model_id": asked.model_id})

    refused = [_refusal(name, sentence) for name, sentence in REFUSED.items()]
    return [
        post("unload_model", unload_model, takes=rest_types.UnloadModel, does="Lets a model go."),
        *refused,
    ]
