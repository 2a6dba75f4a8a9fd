"""Bodies in, JSON out; what every route shares."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service import logs, metrics
from tinsmith.service.limits import (
    BODY,
    MIB,
    SECONDS_TO_START,
    SLOWEST,
    BodyLease,
    Limits,
    Unpacker,
)
from tinsmith.service.ops import JSON
from tinsmith.service.wire.types import WireModel, parse

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
T = TypeVar("T", bound=WireModel)

PREFIX = "/api/v1"
LONG_POLL_SECONDS = 30.0
MOST_PARTS = 500_000  # lists and objects in one JSON body
LARGE = 1_000_000  # bytes; decoding more than this would hold up the event loop


@dataclass(frozen=True)
class Query:
    """A parameter in the query string, for the OpenAPI document."""

    name: str
    type: Literal["string", "integer"] = "string"
    one_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class About:
    """What the OpenAPI document says of a route."""

    does: str = ""
    takes: type[BaseModel] | None = None  # a JSON body
    query: tuple[Query, ...] = ()
    proto: bool = False  # the body may be a protobuf message
    gives: Mapping[str, str] = field(default_factory=dict[str, str])  # content type -> what


class ApiRoute(Route):
    """A plain route that can say what it is for."""

    def __init__(self, method: str, path: str, handler: Handler, about: About) -> None:
        super().__init__(path, handler, methods=[method])
        self.method = method
        self.about = about


def route(
    method: str,
    path: str,
    handler: Handler,
    *,
    prefix: str = PREFIX,
    does: str = "",
    takes: type[BaseModel] | None = None,
    query: Sequence[Query] = (),
    proto: bool = False,
    gives: Mapping[str, str] | None = None,
) -> ApiRoute:
    """`does`: one sentence; `takes`: the model of its JSON body; both go into /openapi.json."""
    about = About(does, takes, tuple(query), proto, gives or {})
    return ApiRoute(method, f"{prefix}/{path}", handler, about)


def post(path: str, handler: Handler, **about: Any) -> ApiRoute:
    """The keywords are those of `route`."""
    return route("POST", path, handler, **about)


def get(path: str, handler: Handler, **about: Any) -> ApiRoute:
    return route("GET", path, handler, **about)


def put(path: str, handler: Handler, **about: Any) -> ApiRoute:
    return route("PUT", path, handler, **about)


def delete(path: str, handler: Handler, **about: Any) -> ApiRoute:
    return route("DELETE", path, handler, **about)


def answer(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type=JSON)


async def read(request: Request, model: type[T], *, data: bool = False) -> tuple[T, bytes]:
    """The request as a value, and its body as it came; `data`: it may hold prompts and tensors."""
    body = await read_json(request, data=data)
    large = len(body) > LARGE
    asked = await asyncio.to_thread(parse, model, body) if large else parse(model, body)
    logs.note(asked)
    return asked, body


async def read_json(request: Request, *, data: bool = False) -> bytes:
    """A body of which less is taken than of protobuf: it grows when it is read."""
    limits = limits_of(request)
    body = await read_body(request, limits.data_bytes if data else limits.json_bytes)
    # Two bytes, {}, become a hundred and more; a number or a character is more modest.
    if len(body) > LARGE and body.count(b"{") + body.count(b"[") > MOST_PARTS:
        raise RequestError(f"the request has more than {MOST_PARTS} parts; send fewer.", 413)
    return body


def limits_of(request: Request) -> Limits:
    lease: BodyLease | None = request.scope.get(BODY)
    return Limits() if lease is None else lease.limits


async def read_body(request: Request, limit: int | None = None) -> bytes:
    """The whole body, decompressed if it is zstd; never much more than `limit` bytes of it in memory.

    A body that would not fit beside those being read is refused for a moment, and one that comes too
    slowly for good: neither may keep memory from others.
    """
    lease: BodyLease = request.scope.get(BODY) or BodyLease(Limits())
    limit = lease.limits.body_bytes if limit is None else min(limit, lease.limits.body_bytes)
    _check_declared(request.headers.get("content-length"), limit)
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "zstd"):
        raise RequestError(f"Content-Encoding {encoding!r} is not taken; send plain or zstd.", 415)
    unpacker = Unpacker() if encoding == "zstd" else None
    parts: list[bytes] = []
    sent = size = granted = 0
    loop = asyncio.get_running_loop()
    start = loop.time()
    try:
        async with asyncio.timeout_at(start + SECONDS_TO_START) as deadline:
            async for chunk in request.stream():
                sent += len(chunk)
                if sent - granted >= MIB:  # seldom: timers take longer than most bodies
                    granted = sent
                    deadline.reschedule(start + SECONDS_TO_START + sent / SLOWEST)
                for part in unpacker.feed(chunk) if unpacker else (chunk,):
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit)
                    lease.take(len(part))
                    parts.append(part)
    except TimeoutError:
        raise RequestError(
            f"only {sent} bytes of the body came in {loop.time() - start:.0f} s; send it faster.",
            408,
        ) from None
    lease.whole = True
    metrics.count("tinsmith_received_bytes_total", sent)
    if unpacker is not None:
        unpacker.finish()
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_declared(length: str | None, limit: int) -> None:
    """What says itself that it is too large need not be read."""
    if length is not None and length.isdigit() and len(length) < 20 and int(length) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> RequestError:
    how_much = f"{limit // 2**20} MiB" if limit >= 2**20 else f"{limit} bytes"
    return RequestError(f"the request is larger than {how_much}; send fewer data at a time.", 413)
