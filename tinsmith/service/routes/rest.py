"""Calls of the Tinker API that are known and not there yet; each says so by its name."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.service.core import Service
from tinsmith.service.routes.http import PREFIX, answer

_CHECKPOINT = "training_runs/{run}/checkpoints/{kind}/{name}"
NOT_THERE: tuple[tuple[str, str], ...] = (
    ("POST", "auth/token"),
    ("GET", "auth/apikey/me"),
    ("DELETE", "auth/apikey/me"),
    ("POST", "create_custom_loss"),
    ("POST", "save_weights_external"),
    ("POST", "copy_weights"),
    ("GET", "training_runs"),
    ("GET", "training_runs/{run}"),
    ("GET", "training_runs/{run}/checkpoints"),
    ("GET", "training_runs/{run}/checkpoints/external_weights/{name}/external_weights_urls"),
    ("POST", f"{_CHECKPOINT}/publish"),
    ("DELETE", f"{_CHECKPOINT}/publish"),
    ("PUT", f"{_CHECKPOINT}/ttl"),
    ("GET", f"{_CHECKPOINT}/archive"),
    ("DELETE", _CHECKPOINT),
    ("GET", "checkpoints"),
    ("GET", "sessions"),
    ("POST", "sessions/search"),
    ("GET", "sessions/{session_id}"),
    ("PUT", "sessions/{session_id}/project"),
    ("GET", "sessions/{session_id}/trace_export"),
    ("GET", "audit"),
    ("GET", "billing/usage/events"),
    ("GET", "billing/usage/checkpoints/current"),
    ("POST", "forward"),
    ("POST", "unload_model"),
    ("GET", "models/{model}/checkpoints"),
    ("POST", "sample"),
    ("POST", "auth/apikey"),
)


def _route(method: str, path: str) -> Route:
    async def not_there(request: Request) -> Response:
        # 501 would say it best, but the SDK repeats any 5xx for minutes.
        return answer({"detail": f"{method} {PREFIX}/{path} is not there yet."}, 404)

    return Route(f"{PREFIX}/{path}", not_there, methods=[method])


def routes(service: Service) -> list[Route]:
    return [_route(method, path) for method, path in NOT_THERE]
