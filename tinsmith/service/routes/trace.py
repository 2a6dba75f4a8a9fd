"""A session's requests as a timeline that https://ui.perfetto.dev opens."""

from __future__ import annotations

from typing import Any

import orjson

from tinsmith.service.store.session_list import Event, SessionList

MOST = 100_000  # requests in one file


def trace(sessions: SessionList, session_id: str) -> bytes:
    """Chrome's trace format: one track for every model and sampler, one bar for every request."""
    events = sessions.events(session_id, MOST)
    tracks = {name: number for number, name in enumerate(sorted({event.of for event in events}), 1)}
    rows: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
        for name, number in tracks.items()
    ]
    for event in events:
        rows += _bar(event, tracks[event.of])
    note = (
        "Requests from their arrival to their answer. Results that were fetched or are hours old are "
        f"not kept and so not shown, nor are more than {MOST} requests."
    )
    return orjson.dumps(
        {
            "displayTimeUnit": "ms",
            "otherData": {"session_id": session_id, "note": note},
            "traceEvents": rows,
        }
    )


def _bar(event: Event, track: int) -> list[dict[str, Any]]:
    """A begin and, once it is answered, an end; requests overlap, so they are told apart by id."""
    begin: dict[str, Any] = {
        "ph": "b",
        "cat": "request",
        "name": event.kind,
        "id": event.id,
        "pid": track,
        "tid": track,
        "ts": round(event.created_at * 1e6),
        "args": {"request_id": event.id, "seq_id": event.seq_id},
    }
    if event.error is not None:
        begin["args"]["error"] = event.error
    if event.finished_at is None:
        return [begin]
    return [begin, {**begin, "ph": "e", "ts": round(event.finished_at * 1e6)}]
