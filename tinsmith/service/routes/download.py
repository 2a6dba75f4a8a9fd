"""Files for whoever has the link: signed, for an hour, and without a key, as the SDK fetches them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import secrets
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service.core import Service
from tinsmith.service.routes.http import get
from tinsmith.service.routes.trace import trace
from tinsmith.service.store.rows import Checkpoint
from tinsmith.service.tenants import CALLER

PATH = "/download"
LINK_SECONDS = 3600.0
ARCHIVE = "checkpoint.tar"
_SECRET = secrets.token_bytes(32)  # of this process: a link does not outlive it
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_BYTES = "application/octet-stream"


# links


def checkpoint_link(request: Request, checkpoint: Checkpoint, file: str, expires: float) -> str:
    """An address of this service that gives a file of a checkpoint until it expires."""
    # The time is part of it: a name may be saved over, and files of two must not be mixed.
    what = {"path": checkpoint.path, "at": checkpoint.created_at, "owner": CALLER.get()}
    return _link(request, what, file, expires)


def trace_link(request: Request, session_id: str) -> str:
    """An address of this service that gives a session's timeline."""
    expires = time.time() + LINK_SECONDS
    return _link(request, {"session": session_id}, f"{session_id}.pftrace", expires)


def _link(request: Request, what: Mapping[str, Any], file: str, expires: float) -> str:
    return f"{_base(request)}{PATH}/{_sign({**what, 'expires': expires})}/{file}"


def _base(request: Request) -> str:
    """The address the client used; a Host header that is not a host is not believed."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        name, port = request.scope.get("server") or ("localhost", None)
        host = name if port is None else f"{name}:{port}"
    return f"{request.url.scheme}://{host}{request.scope.get('root_path', '')}"


def _sign(what: Mapping[str, Any]) -> str:
    body = orjson.dumps(what)
    return _text(body) + "." + _text(hmac.digest(_SECRET, body, hashlib.sha256))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _data(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _read(token: str) -> dict[str, Any]:
    body, _, signature = token.partition(".")
    try:
        signed = hmac.digest(_SECRET, _data(body), hashlib.sha256)
        if hmac.compare_digest(signed, _data(signature)):
            what = orjson.loads(_data(body))
            if what["expires"] > time.time():
                return what
    except ValueError:
        pass
    raise RequestError("this link is not valid or no longer is; ask for a new one.", status=404)


# files


def peft_files(directory: Path) -> list[str]:
    """What others need of a checkpoint: the adapter, not the optimizer's state nor our own notes."""
    return sorted(
        file.name
        for file in directory.iterdir()
        if file.is_file() and file.name.removesuffix(".age").startswith("adapter_")
    )


def _archive(directory: Path) -> Iterator[bytes]:
    """The adapter as a tar file, piece by piece."""
    for name in peft_files(directory):
        file = directory / name
        entry = tarfile.TarInfo(name)
        entry.size = file.stat().st_size
        yield entry.tobuf()
        with file.open("rb") as content:
            while chunk := content.read(1 << 20):
                yield chunk
        yield b"\0" * (-entry.size % tarfile.BLOCKSIZE)
    # Older command lines look for this file to know that they have all.
    yield tarfile.TarInfo("checkpoint_complete").tobuf()
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def routes(service: Service) -> list[Route]:
    async def download(request: Request) -> Response:
        what, name = _read(request.path_params["token"]), request.path_params["file"]
        if "session" in what:
            data = await asyncio.to_thread(trace, service.catalog.sessions, what["session"])
            return Response(data, media_type=_BYTES)
        checkpoint, directory = service.catalog.find(what["path"], what["owner"])
        if checkpoint.created_at != what["at"]:
            raise RequestError(f"{checkpoint.path} was saved again; ask for a new link.", 404)
        if name == ARCHIVE:
            return StreamingResponse(_archive(directory), media_type="application/x-tar")
        if name not in peft_files(directory):
            raise RequestError(f"{checkpoint.path} has no file {name!r}.", status=404)
        return FileResponse(directory / name, media_type=_BYTES)

    does = "A file behind a signed link; needs no key."
    return [get("{token}/{file}", download, prefix=PATH, does=does, gives={_BYTES: "The file."})]
