"""Training runs and sessions, past and present; what was done to them and how much room they take."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service.core import Service
from tinsmith.service.routes.checkpoints import checkpoint_fields
from tinsmith.service.routes.download import trace_link
from tinsmith.service.routes.http import Query, answer, get, post, put, read
from tinsmith.service.routes.queries import (
    PAGE,
    SCOPE,
    accessible,
    choice,
    day,
    iso,
    moment,
    page,
)
from tinsmith.service.store.audit import AuditRow
from tinsmith.service.store.catalog import Run
from tinsmith.service.store.rows import SessionRow
from tinsmith.service.store.session_list import (
    CLIENT_SAID,
    DEFAULT_PROJECT,
    SessionQuery,
    SessionSums,
)
from tinsmith.service.tenants import CALLER
from tinsmith.service.wire.rest_types import SearchSessions, SetProject

GIGABYTE = 10**9
RESOURCES = {
    "all": "",
    "checkpoints": "checkpoint_",
    "projects": "project_",
    "teams": "team_",
    "organizations": "organization_",
}


def _texts(metadata: dict[str, Any]) -> dict[str, str] | None:
    """Metadata as the SDK reads it: texts only. What was not one comes as JSON."""
    return {
        name: value if isinstance(value, str) else orjson.dumps(value).decode()
        for name, value in metadata.items()
    } or None


# training runs


def _run_fields(run: Run) -> dict[str, Any]:
    model = run.model
    return {
        "training_run_id": model.id,
        "base_model": model.base_model,
        "model_owner": run.owner,
        "is_lora": True,
        "lora_rank": model.spec["rank"],
        "corrupted": False,
        "last_request_time": iso(model.last_request_at or model.created_at),
        "last_checkpoint": None if run.last is None else checkpoint_fields(run.last),
        "last_sampler_checkpoint": None
        if run.last_sampler is None
        else checkpoint_fields(run.last_sampler),
        "user_metadata": _texts(model.user_metadata),
    }


def _training_runs(service: Service) -> list[Route]:
    async def training_runs(request: Request) -> Response:
        limit, offset = page(request, 20)
        found = await asyncio.to_thread(
            service.catalog.runs,
            CALLER.get(),
            limit=limit,
            offset=offset,
            accessible=accessible(request),
            project=request.query_params.get("project_id"),
        )
        return answer(
            {
                "training_runs": [_run_fields(run) for run in found.items],
                "cursor": {"offset": offset, "limit": limit, "total_count": found.total},
            }
        )

    async def training_run(request: Request) -> Response:
        run = service.catalog.run(
            request.path_params["run"], CALLER.get(), accessible=accessible(request)
        )
        return answer(_run_fields(run))

    return [
        get(
            "training_runs",
            training_runs,
            query=(*PAGE, *SCOPE, Query("project_id")),
            does="The caller's training runs, newest first.",
        ),
        get("training_runs/{run}", training_run, query=SCOPE, does="One training run."),
    ]


# sessions


def _status(session: SessionRow) -> dict[str, Any] | None:
    """None: it was not ended by its client, nor is it known to be there."""
    if session.finished is None:
        return {"type": "active"}
    if session.finished not in CLIENT_SAID:
        return None
    reason = {"type": session.finished}
    return {"type": "client_finished", "reason": reason, "detail": session.detail}


def _summary(found: SessionSums) -> dict[str, Any]:
    session = found.session
    return {
        "session_id": session.id,
        "created_at": iso(session.created_at),
        "owner": session.owner,
        "project_id": session.project_id or DEFAULT_PROJECT,
        "status": _status(session),
        "checkpoints_count": found.checkpoints,
        "checkpoint_storage_bytes": found.size_bytes,
        "display_name": session.display_name,
        "user_metadata": _texts(session.user_metadata),
    }


def _query(asked: SearchSessions, after: tuple[float, str] | None) -> SessionQuery:
    finished: set[str] = set()
    for status in asked.statuses or ():
        if status.type == "client_finished":
            finished |= set(CLIENT_SAID if status.reasons is None else status.reasons)
    return SessionQuery(
        session_id=asked.session_id,
        words=tuple((asked.display_name or "").split()[:32]),
        projects=None if asked.project_ids is None else tuple(asked.project_ids),
        user_metadata=asked.user_metadata,
        open=None if asked.statuses is None else any(s.type == "active" for s in asked.statuses),
        finished=tuple(sorted(finished)),
        after=after,
    )


def _sessions(service: Service) -> list[Route]:
    sessions = service.catalog.sessions

    async def list_sessions(request: Request) -> Response:
        limit, offset = page(request, 20)
        accessible(request)
        return answer({"sessions": sessions.ids(CALLER.get(), limit=limit, offset=offset)})

    async def get_session(request: Request) -> Response:
        accessible(request)
        session = sessions.get(request.path_params["session_id"], CALLER.get())
        models, samplers = sessions.members(session.id)
        return answer(
            {
                "training_run_ids": models,
                "sampler_ids": samplers,
                "user_metadata": _texts(session.user_metadata),
                "display_name": session.display_name,
            }
        )

    async def search(request: Request) -> Response:
        asked, _ = await read(request, SearchSessions)
        caller, whose, after = CALLER.get(), asked.owner, None
        if whose.type == "user" and caller not in whose.owner_urns:
            return answer({"sessions": [], "next_cursor": None})
        if asked.cursor is not None:
            last = asked.cursor.last_session_id
            at = sessions.created_at(last)
            after = asked.cursor.last_created_at.timestamp() if at is None else at, last
        found = await asyncio.to_thread(
            sessions.search, caller, _query(asked, after), asked.limit + 1
        )
        shown, cursor = found[: asked.limit], None
        if len(found) > len(shown):
            end = shown[-1].session
            cursor = {"last_created_at": iso(end.created_at), "last_session_id": end.id}
        return answer({"sessions": [_summary(one) for one in shown], "next_cursor": cursor})

    async def set_project(request: Request) -> Response:
        asked, _ = await read(request, SetProject)
        session_id = request.path_params["session_id"]
        moved = sessions.set_project(session_id, CALLER.get(), asked.project_id)
        await asyncio.wrap_future(moved)
        service.catalog.audit.add(CALLER.get(), "project_session_assign", session_id)
        return answer({})

    async def trace_export(request: Request) -> Response:
        session = sessions.get(request.path_params["session_id"], CALLER.get())
        return answer({"status": "ready", "url": trace_link(request, session.id)})

    return [
        get("sessions", list_sessions, query=(*PAGE, *SCOPE), does="The caller's sessions."),
        post("sessions/search", search, takes=SearchSessions, does="Sessions, newest first."),
        get("sessions/{session_id}", get_session, query=SCOPE, does="What is in a session."),
        put(
            "sessions/{session_id}/project",
            set_project,
            takes=SetProject,
            does="Moves a session to a project.",
        ),
        get(
            "sessions/{session_id}/trace_export",
            trace_export,
            does="A link to a timeline of the session's requests.",
        ),
    ]


# what was done, and what it takes


def _entry(row: AuditRow) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "timestamp": iso(row.at),
        "event": row.event,
        "event_details": {"actor": row.owner, "subject": row.subject},
    }
    if row.event.startswith("checkpoint_"):
        entry["tinker_path"] = row.subject
        entry["model_id"] = row.subject.removeprefix("tinker://").partition("/")[0]
    return entry


def _books(service: Service) -> list[Route]:
    async def audit(request: Request) -> Response:
        resource = RESOURCES[choice(request, "event_type", list(RESOURCES))]
        rows = service.catalog.audit.between(CALLER.get(), *day(request), resource)
        return answer({"entries": [_entry(row) for row in rows]})

    async def usage(request: Request) -> Response:
        """Nothing is billed here, so there are no events; the window is checked all the same."""
        start, end = moment(request, "starting_on"), moment(request, "ending_before")
        if not timedelta(0) < end - start <= timedelta(days=14):
            raise RequestError("ending_before must be up to 14 days after starting_on.")
        return answer({"data": [], "sessions": {}})

    async def storage(request: Request) -> Response:
        rows = service.catalog.storage(CALLER.get(), request.query_params.get("project_id"))
        data = [
            {
                "project_id": project,
                "user_name": CALLER.get(),
                "checkpoint_count": count,
                "size_bytes": size,
                "size_gigabytes": size / GIGABYTE,
            }
            for project, count, size in rows
        ]
        return answer({"data": data})

    return [
        get(
            "audit",
            audit,
            query=(Query("event_type", one_of=tuple(RESOURCES)), Query("day")),
            does="What the caller changed on a day.",
        ),
        get(
            "billing/usage/events",
            usage,
            query=(Query("starting_on"), Query("ending_before")),
            does="Nothing: nothing is billed here.",
        ),
        get(
            "billing/usage/checkpoints/current",
            storage,
            query=(Query("project_id"),),
            does="How much room the caller's checkpoints take.",
        ),
    ]


def routes(service: Service) -> list[Route]:
    return [*_training_runs(service), *_sessions(service), *_books(service)]
