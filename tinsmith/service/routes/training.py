"""Training: forward, forward_backward (protobuf, JSON for older SDKs) and optim_step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service import logs
from tinsmith.service.core import Service
from tinsmith.service.ops import JSON, PROTOBUF, OpKind
from tinsmith.service.requests import checked_pass, optim_of, pass_of
from tinsmith.service.routes.http import LARGE, answer, post, read_body, read_json
from tinsmith.service.tenants import Model
from tinsmith.service.wire import old_json, proto, types

T = TypeVar("T", bound=types.WireModel)


@asynccontextmanager
async def numbered(service: Service, model_id: str, seq_id: int) -> AsyncIterator[Model]:
    """The model of a numbered request. One that is refused has used its number up all the same: the
    SDK goes on with the next, which must not wait for it."""
    if seq_id < 1:
        raise RequestError(f"seq_id must be at least 1 (got {seq_id}); 0 is the model's creation.")
    model = service.model(model_id)
    try:
        yield model
    except RequestError as error:
        if error.status != 429:  # that one comes again
            await service.desk.refuse(model_id, seq_id, str(error))
        raise


async def read_numbered(service: Service, request: Request, model: type[T]) -> tuple[T, bytes]:
    """As `read`, for a request whose number is used up even if the rest of it is malformed."""
    body = await read_json(request)
    try:
        asked = types.parse(model, body)
        logs.note(asked)
        return asked, body
    except RequestError as error:
        await _use_up_number(service, body, str(error))
        raise


async def _use_up_number(service: Service, body: bytes, reason: str) -> None:
    """As far as a number can be read from what else is malformed."""
    try:
        outline = orjson.loads(body)
    except orjson.JSONDecodeError:
        return
    match outline:
        case {"model_id": str(model_id), "seq_id": int(seq_id)}:
            await service.desk.refuse(model_id, seq_id, reason)


def routes(service: Service) -> list[Route]:
    async def forward_backward(request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        if JSON in kind:
            return await json_pass(request)
        if PROTOBUF not in kind:
            raise RequestError(
                f"forward_backward takes {PROTOBUF} or {JSON} (got {kind or 'no Content-Type'}); "
                "use the tinker SDK.",
                status=415,
            )
        body = await read_body(request)
        parse, large = proto.parse_forward_backward, len(body) > LARGE
        message = await asyncio.to_thread(parse, body) if large else parse(body)
        logs.note(message)
        model_id, seq_id = message.model_id, message.seq_id
        async with numbered(service, model_id, seq_id) as model:
            if large:
                work = await asyncio.to_thread(pass_of, body, model.info)
            else:
                work = checked_pass(proto.decode_forward_backward(message), model.info)
            future_id = await service.desk.submit(OpKind.PASS, model_id, seq_id, work, body)
        return answer({"request_id": future_id, "model_id": model_id})

    async def json_pass(request: Request) -> Response:
        """Of SDKs before 0.25; on `forward` and `forward_backward` alike the body says which it is."""
        body = (await read_json(request, data=True)).lstrip(b" \t\r\n")
        large = len(body) > LARGE
        try:
            decode = old_json.decode_forward_backward
            asked = await asyncio.to_thread(decode, body) if large else decode(body)
        except RequestError as error:
            await _use_up_number(service, body, str(error))
            raise
        async with numbered(service, asked.model_id, asked.seq_id) as model:
            work = checked_pass(asked, model.info)
            future_id = await service.desk.submit(OpKind.PASS, model.id, asked.seq_id, work, body)
        return answer({"request_id": future_id, "model_id": model.id})

    async def optim_step(request: Request) -> Response:
        asked, body = await read_numbered(service, request, types.OptimStep)
        async with numbered(service, asked.model_id, asked.seq_id) as model:
            work = optim_of(asked)
            future_id = await service.desk.submit(OpKind.OPTIM, model.id, asked.seq_id, work, body)
        return answer({"request_id": future_id, "model_id": model.id})

    return [
        post(
            "forward_backward",
            forward_backward,
            takes=old_json.PassRequest,
            proto=True,
            does="Loss and gradient of data.",
        ),
        post("forward", json_pass, takes=old_json.PassRequest, does="Of old SDKs: the loss alone."),
        post("optim_step", optim_step, takes=types.OptimStep, does="One step of the optimizer."),
    ]
