"""Futures: fetch one result, hear which samples finished, cancel."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.service.core import Service
from tinsmith.service.ops import JSON
from tinsmith.service.routes.http import LONG_POLL_SECONDS, answer, post, read
from tinsmith.service.wire import types


def routes(service: Service) -> list[Route]:
    async def retrieve_future(request: Request) -> Response:
        asked, _ = await read(request, types.RetrieveFuture)
        outcome = await service.result(asked.request_id, LONG_POLL_SECONDS)
        if outcome is None:
            again = {
                "type": "try_again",
                "request_id": asked.request_id,
                "queue_state": "active",
            }
            return Response(orjson.dumps(again), 408, media_type=JSON)
        return Response(outcome.payload, media_type=outcome.content_type)

    async def retrieve_futures(request: Request) -> Response:
        asked, _ = await read(request, types.RetrieveFutures)
        target = asked.target
        service.retrieved(target.sampling_session_id, asked.retrieved_request_ids)
        seconds = min(LONG_POLL_SECONDS, max(asked.timeout or LONG_POLL_SECONDS, 0.0))
        found, cursor = await service.finished(
            target.sampling_session_id, target.cloned_sampler_id, asked.prev_cursor, seconds
        )
        completions = [
            {"state": "failed", "request_id": one.future_id}
            if one.failed
            else {
                "state": "finished",
                "request_id": one.future_id,
                "response_payload_uncompressed_size": one.size,
            }
            for one in found
        ]
        return answer({"completions": completions, "cursor": cursor})

    async def cancel_future(request: Request) -> Response:
        asked, _ = await read(request, types.CancelFuture)
        return answer({"cancelled": await service.cancel(asked.request_id)})

    return [
        post("retrieve_future", retrieve_future),
        post("retrieve_futures", retrieve_futures),
        post("cancel_future", cancel_future),
    ]
