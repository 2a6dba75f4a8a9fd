"""Bodies in, JSON out; what every route shares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import orjson
import zstandard
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service.ops import JSON
from tinsmith.service.wire.types import WireModel, parse

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
T = TypeVar("T", bound=WireModel)

PREFIX = "/api/v1"
MAX_BODY = 512 * 1024 * 1024
LONG_POLL_SECONDS = 30.0


def post(path: str, handler: Handler) -> Route:
    return Route(f"{PREFIX}/{path}", handler, methods=["POST"])


def get(path: str, handler: Handler) -> Route:
    return Route(f"{PREFIX}/{path}", handler, methods=["GET"])


def answer(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type=JSON)


async def read(request: Request, model: type[T]) -> tuple[T, bytes]:
    """The request as a value, and its body as it came."""
    body = await read_body(request)
    return parse(model, body), body


async def read_body(request: Request, limit: int = MAX_BODY) -> bytes:
    """The whole body, decompressed if it is zstd; never more than `limit` bytes of it in memory."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding not in ("identity", "zstd"):
        raise RequestError(f"Content-Encoding {encoding!r} is not taken; send plain or zstd.", 415)
    # A frame can say that it is small and grow without end, so it is unpacked piece by piece.
    unpack = (
        zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj()
        if encoding == "zstd"
        else None
    )
    parts: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        for start in range(0, len(chunk), 65536) if unpack else (0,):
            try:
                part = unpack.decompress(chunk[start : start + 65536]) if unpack else chunk
            except zstandard.ZstdError as error:
                raise RequestError(f"the body is not zstd: {error}.") from None
            size += len(part)
            if size > limit:
                raise RequestError(
                    f"the request is larger than {limit // 2**20} MiB; send fewer data at a time.",
                    status=413,
                )
            parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
