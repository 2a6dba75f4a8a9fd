"""Futures: fetch one result, hear which samples finished, cancel."""

from __future__ import annotations

import asyncio

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.service.core import Service
from tinsmith.service.ops import JSON, PROTOBUF, Outcome
from tinsmith.service.routes.http import LARGE, LONG_POLL_SECONDS, answer, post, read
from tinsmith.service.wire import types
from tinsmith.service.wire.old_json import result_as_json

_KINDS = {"Sample": "sample", "Forward": "forward_backward", "ForwardBackward": "forward_backward"}


async def _as_asked(request: Request, outcome: Outcome) -> Response:
    """The result; SDKs which do not say that they read protobuf are sent JSON instead."""
    payload, content_type = outcome.payload, outcome.content_type
    kind = _KINDS.get(request.headers.get("x-tinker-request-type", ""))
    if content_type == PROTOBUF and kind and PROTOBUF not in request.headers.get("accept", ""):
        large = len(payload) > LARGE
        payload = (
            await asyncio.to_thread(result_as_json, kind, payload)
            if large
            else result_as_json(kind, payload)
        )
        content_type = JSON
    return Response(payload, media_type=content_type)


def routes(service: Service) -> list[Route]:
    async def retrieve_future(request: Request) -> Response:
        asked, _ = await read(request, types.RetrieveFuture)
        outcome = await service.desk.result(asked.request_id, LONG_POLL_SECONDS)
        if outcome is None:
            again = {
                "type": "try_again",
                "request_id": asked.request_id,
                "queue_state": "active",
            }
            return Response(orjson.dumps(again), 408, media_type=JSON)
        return await _as_asked(request, outcome)

    async def retrieve_futures(request: Request) -> Response:
        asked, _ = await read(request, types.RetrieveFutures)
        target = asked.target
        service.desk.retrieved(target.sampling_session_id, asked.retrieved_request_ids)
        seconds = min(LONG_POLL_SECONDS, max(asked.timeout or LONG_POLL_SECONDS, 0.0))
        found, cursor = await service.desk.finished(
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
        return answer({"cancelled": await service.desk.cancel(asked.request_id)})

    return [
        post(
            "retrieve_future",
            retrieve_future,
            takes=types.RetrieveFuture,
            does="A result, waited for; 408: not yet.",
            gives={JSON: "The result", PROTOBUF: "or its message."},
        ),
        post(
            "retrieve_futures",
            retrieve_futures,
            takes=types.RetrieveFutures,
            does="Which samples finished; waits until there are some.",
        ),
        post("cancel_future", cancel_future, takes=types.CancelFuture, does="Stops a sample."),
    ]
