"""Training: forward, forward_backward (protobuf) and optim_step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service.core import Service
from tinsmith.service.engine.backend import AdamSpec, LossSpec, ModelInfo, TrainItem
from tinsmith.service.engine.checks import check_adam, check_items
from tinsmith.service.ops import PROTOBUF, OpKind, Pass
from tinsmith.service.routes.http import answer, post, read_body
from tinsmith.service.tenants import Model
from tinsmith.service.wire import proto, types

T = TypeVar("T", bound=types.WireModel)

LARGE = 1_000_000  # bytes; decoding more than this would hold up the event loop


def _pass(message: proto.pb.ForwardBackwardRequest, info: ModelInfo) -> Pass:
    asked = proto.decode_forward_backward(message)
    items = tuple(TrainItem(datum.tokens, datum.inputs) for datum in asked.data)
    loss = LossSpec(asked.loss_fn, asked.loss_params)
    check_items(items, loss, info)
    return Pass(items, loss, backward=not asked.forward_only)


@contextmanager
def numbered(service: Service, model_id: str, seq_id: int) -> Iterator[Model]:
    """The model of a numbered request. One that is refused has used its number up all the same: the
    SDK goes on with the next, which must not wait for it."""
    if seq_id < 1:
        raise RequestError(f"seq_id must be at least 1 (got {seq_id}); 0 is the model's creation.")
    model = service.model(model_id)
    try:
        yield model
    except RequestError:
        service.refuse(model_id, seq_id)
        raise


async def read_numbered(service: Service, request: Request, model: type[T]) -> tuple[T, bytes]:
    """As `read`, for a request whose number is used up even if the rest of it is malformed."""
    body = await read_body(request)
    try:
        return types.parse(model, body), body
    except RequestError:
        try:
            outline = orjson.loads(body)
        except orjson.JSONDecodeError:
            outline = None
        match outline:
            case {"model_id": str(model_id), "seq_id": int(seq_id)}:
                service.refuse(model_id, seq_id)
        raise


def routes(service: Service) -> list[Route]:
    async def forward_backward(request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        body = await read_body(request)
        if PROTOBUF not in kind:
            raise RequestError(
                f"forward_backward takes {PROTOBUF} (got {kind or 'no Content-Type'}); "
                "use the tinker SDK, version 0.25 or newer.",
                status=415,
            )
        message = proto.parse_forward_backward(body)
        model_id, seq_id = message.model_id, message.seq_id
        with numbered(service, model_id, seq_id) as model:
            large = len(body) > LARGE
            work = (
                await asyncio.to_thread(_pass, message, model.info)
                if large
                else _pass(message, model.info)
            )
            future_id = await service.submit(OpKind.PASS, model_id, seq_id, work, body)
        return answer({"request_id": future_id, "model_id": model_id})

    async def optim_step(request: Request) -> Response:
        asked, body = await read_numbered(service, request, types.OptimStep)
        with numbered(service, asked.model_id, asked.seq_id) as model:
            if asked.optimizer_params is not None:
                raise RequestError(
                    f"optimizer_params of type {asked.optimizer_params.type!r} are not taken; "
                    "send adam_params."
                )
            adam = AdamSpec(**(asked.adam_params or types.AdamParams()).model_dump())
            check_adam(adam)
            future_id = await service.submit(OpKind.OPTIM, model.id, asked.seq_id, adam, body)
        return answer({"request_id": future_id, "model_id": model.id})

    return [post("forward_backward", forward_backward), post("optim_step", optim_step)]
