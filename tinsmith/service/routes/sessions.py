"""Sessions: open, heartbeat, finish; and the sampling sessions inside them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.service.core import Service, SessionFacts
from tinsmith.service.routes.http import answer, post, read
from tinsmith.service.wire import types


def routes(service: Service) -> list[Route]:
    async def create_session(request: Request) -> Response:
        asked, _ = await read(request, types.CreateSession)
        session_id = await service.open_session(
            SessionFacts(
                tags=asked.tags,
                user_metadata=asked.user_metadata or {},
                sdk_version=asked.sdk_version,
                project_id=asked.project_id,
                display_name=asked.display_name,
            )
        )
        return answer({"session_id": session_id, "type": "create_session"})

    async def heartbeat(request: Request) -> Response:
        asked, _ = await read(request, types.SessionHeartbeat)
        service.heartbeat(asked.session_id)
        return answer({"type": "session_heartbeat"})

    async def finish(request: Request) -> Response:
        asked, _ = await read(request, types.FinishSession)
        await service.finish_session(request.path_params["session_id"], asked.reason.type)
        return answer({})

    async def create_sampling_session(request: Request) -> Response:
        asked, _ = await read(request, types.CreateSamplingSession)
        sampler_id = await service.create_sampler(
            asked.session_id, asked.sampling_session_seq_id, asked.base_model, asked.model_path
        )
        return answer({"sampling_session_id": sampler_id, "type": "create_sampling_session"})

    async def join_sampling_session(request: Request) -> Response:
        asked, _ = await read(request, types.JoinSamplingSession)
        number = await service.join_sampler(asked.sampling_session_id)
        return answer({"client_counter": number, "type": "join_sampling_session"})

    return [
        post("create_session", create_session, takes=types.CreateSession, does="A new session."),
        post("session_heartbeat", heartbeat, takes=types.SessionHeartbeat, does="A sign of life."),
        post(
            "sessions/{session_id}/finish",
            finish,
            takes=types.FinishSession,
            does="Ends a session.",
        ),
        post(
            "create_sampling_session",
            create_sampling_session,
            takes=types.CreateSamplingSession,
            does="A sampler of a base model or a checkpoint.",
        ),
        post(
            "join_sampling_session",
            join_sampling_session,
            takes=types.JoinSamplingSession,
            does="A number for one more client of a sampler.",
        ),
    ]
