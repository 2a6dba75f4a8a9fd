"""Saved checkpoints: listed, published, given a time to live, copied, deleted, handed out."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service.core import Service
from tinsmith.service.routes.download import ARCHIVE, LINK_SECONDS, checkpoint_link, peft_files
from tinsmith.service.routes.http import answer, delete, get, post, put, read
from tinsmith.service.routes.queries import PAGE, iso, page
from tinsmith.service.store.checkpoints import SCHEME
from tinsmith.service.store.rows import Checkpoint
from tinsmith.service.tenants import CALLER
from tinsmith.service.wire.rest_types import CopyWeights, SetTtl

TYPES = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
_VERSION = re.compile(r"Tinker/Python 0\.(\d+)")
_ONE = "training_runs/{run}/checkpoints/{kind}/{name}"


def checkpoint_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    expires = checkpoint.expires_at
    return {
        "checkpoint_id": f"{checkpoint.kind}/{checkpoint.name}",
        "checkpoint_type": TYPES[checkpoint.kind],
        "time": iso(checkpoint.created_at),
        "tinker_path": checkpoint.path,
        "size_bytes": checkpoint.size_bytes,
        "public": checkpoint.public,
        "user_metadata": checkpoint.user_metadata or None,
        "expires_at": None if expires is None else iso(expires),
    }


def _known_to(request: Request, checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """SDKs before 0.28 refuse a whole list in which one is of a type they do not know."""
    version = _VERSION.search(request.headers.get("user-agent", ""))
    old = version is not None and int(version[1]) < 28
    return [
        checkpoint_fields(one)
        for one in checkpoints
        if not (old and one.kind == "external_weights")
    ]


def _path(request: Request) -> str:
    asked = request.path_params
    return f"{SCHEME}{asked['run']}/{asked['kind']}/{asked['name']}"


def _listing(service: Service) -> list[Route]:
    async def of_caller(request: Request) -> Response:
        limit, offset = page(request, 100)
        found = await asyncio.to_thread(
            service.catalog.checkpoints, CALLER.get(), limit=limit, offset=offset
        )
        return answer(
            {
                "checkpoints": _known_to(request, found.items),
                "cursor": {"offset": offset, "limit": limit, "total_count": found.total},
            }
        )

    async def of_run(request: Request) -> Response:
        run = request.path_params["run"]
        found = await asyncio.to_thread(service.catalog.checkpoints_of, run, CALLER.get())
        cursor = {"offset": 0, "limit": len(found), "total_count": len(found)}
        return answer({"checkpoints": _known_to(request, found), "cursor": cursor})

    return [
        get("checkpoints", of_caller, query=PAGE, does="The caller's checkpoints, newest first."),
        get("training_runs/{run}/checkpoints", of_run, does="The checkpoints of a run."),
        get("models/{run}/checkpoints", of_run, does="The same, as old SDKs call it."),
    ]


def _changing(service: Service) -> list[Route]:
    catalog = service.catalog

    async def publish(request: Request) -> Response:
        await asyncio.wrap_future(catalog.publish(_path(request), CALLER.get(), True))
        return answer({})

    async def unpublish(request: Request) -> Response:
        await asyncio.wrap_future(catalog.publish(_path(request), CALLER.get(), False))
        return answer({})

    async def set_ttl(request: Request) -> Response:
        asked, _ = await read(request, SetTtl)
        changed = catalog.set_ttl(_path(request), CALLER.get(), asked.ttl_seconds)
        await asyncio.wrap_future(changed)
        return answer({})

    async def remove(request: Request) -> Response:
        await asyncio.to_thread(catalog.delete, _path(request), CALLER.get())
        return answer({})

    async def copy_weights(request: Request) -> Response:
        asked, _ = await read(request, CopyWeights)
        place = None
        if asked.session_id is not None and asked.model_seq_id is not None:
            place = asked.session_id, asked.model_seq_id
        elif asked.destination_project_id is None:
            raise RequestError(
                "a copy needs a destination_project_id, or a session_id and a model_seq_id."
            )
        copied = await asyncio.to_thread(
            catalog.copy,
            asked.source_path,
            CALLER.get(),
            ttl_seconds=asked.ttl_seconds,
            project=asked.destination_project_id,
            key=request.headers.get("x-idempotency-key", ""),
            place=place,
        )
        return answer({"tinker_path": copied})

    return [
        post(f"{_ONE}/publish", publish, does="Lets every owner read a checkpoint."),
        delete(f"{_ONE}/publish", unpublish, does="Takes that back."),
        put(f"{_ONE}/ttl", set_ttl, takes=SetTtl, does="When a checkpoint goes; null: never."),
        delete(_ONE, remove, does="Removes a checkpoint and its files."),
        post("copy_weights", copy_weights, takes=CopyWeights, does="A checkpoint in a new run."),
    ]


def _handing_out(service: Service) -> list[Route]:
    async def external_weights_urls(request: Request) -> Response:
        if request.path_params["kind"] != "external_weights":
            raise RequestError(
                "only external_weights are handed out as files; make some of this checkpoint with "
                "save_weights_external, or type `tinker checkpoint download`."
            )
        checkpoint, directory = service.catalog.find(_path(request), CALLER.get())
        expires = time.time() + LINK_SECONDS
        urls = {
            file: checkpoint_link(request, checkpoint, file, expires)
            for file in peft_files(directory)
        }
        service.catalog.audit.add(CALLER.get(), "checkpoint_read", checkpoint.path)
        return answer({"urls": urls, "expires": iso(expires)})

    async def archive(request: Request) -> Response:
        """For SDKs before 0.36: a redirect to a tar file, as they all expect it."""
        checkpoint, _ = service.catalog.find(_path(request), CALLER.get())
        expires = time.time() + LINK_SECONDS
        url = checkpoint_link(request, checkpoint, ARCHIVE, expires)
        service.catalog.audit.add(CALLER.get(), "checkpoint_read", checkpoint.path)
        response = answer({"url": url, "expires": iso(expires)}, 302)
        response.headers["Location"] = url
        response.headers["Expires"] = formatdate(expires, usegmt=True)
        return response

    return [
        get(f"{_ONE}/external_weights_urls", external_weights_urls, does="Links to its files."),
        get(f"{_ONE}/archive", archive, does="For old SDKs: a redirect to a tar of the adapter."),
    ]


def routes(service: Service) -> list[Route]:
    return [*_listing(service), *_changing(service), *_handing_out(service)]
