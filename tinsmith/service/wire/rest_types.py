"""JSON requests about sessions and checkpoints that are not part of training or sampling."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from tinsmith.service.wire.types import SeqId, Ttl, WireModel

Name = Annotated[str, Field(min_length=1, max_length=256)]


class SetTtl(WireModel):
    ttl_seconds: Ttl | None


class CopyWeights(WireModel):
    source_path: str
    destination_project_id: Name | None = None
    session_id: str | None = None
    model_seq_id: SeqId | None = None
    ttl_seconds: Ttl | None = None


class SetProject(WireModel):
    project_id: Name


class UnloadModel(WireModel):
    model_id: str


class SearchOwner(WireModel):
    type: Literal["own", "accessible", "user"] = "own"
    owner_urns: Annotated[tuple[str, ...], Field(max_length=10)] = ()


class StatusQuery(WireModel):
    type: Literal["active", "cancelled", "failed", "client_finished"]
    reasons: Annotated[list[str], Field(max_length=10)] | None = None


class SearchCursor(WireModel):
    # A string in JSON, so not strict.
    last_created_at: Annotated[datetime, Field(strict=False)]
    last_session_id: str


class SearchSessions(WireModel):
    session_id: str | None = None
    project_ids: Annotated[list[str], Field(max_length=200)] | None = None
    user_metadata: dict[str, str] = Field(default={}, max_length=32)
    display_name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    owner: SearchOwner = SearchOwner()
    statuses: Annotated[list[StatusQuery], Field(max_length=10)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: SearchCursor | None = None
