"""The rows of the tables as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Spec: TypeAlias = dict[str, Any]  # a LoRA's settings, as JSON: the store does not know the engine


@dataclass(frozen=True)
class SessionRow:
    id: str
    created_at: float
    heartbeat_at: float
    tags: list[str] = field(default_factory=list[str])
    user_metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None
    owner: str = "local"
    finished: str | None = None  # how, once it is: success, errored, interrupted, or lost
    detail: str | None = None  # what the client said of it, or why it was ended
    finished_at: float | None = None


@dataclass(frozen=True)
class ModelRow:
    id: str
    session_id: str
    base_model: str
    spec: Spec
    created_at: float
    user_metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    last_request_at: float | None = None
    kept_seq: int = -1  # ops up to this one are not needed to make the model again
    dropped: str | None = None  # why it was let go


@dataclass(frozen=True)
class SamplerRow:
    """`model_path`: of a checkpoint; `model_id`: of a copy of a model in training; else the base."""

    id: str
    session_id: str
    base_model: str
    created_at: float
    model_path: str | None = None
    model_id: str | None = None


@dataclass(frozen=True)
class FutureRow:
    """`payload` is the request as it came; it is kept while it may have to be done (again)."""

    id: str
    kind: str
    seq_id: int
    created_at: float
    model_id: str | None = None
    sampler_id: str | None = None
    payload: bytes | None = None
    state: str = "pending"  # then finished or failed


@dataclass(frozen=True)
class ResultRow:
    id: str
    result: bytes
    content_type: str
    finished_at: float
    error: str | None = None
    category: str | None = None
    keep_payload: bool = False  # its effect is in memory only, as yet


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose directory is whole."""

    path: str  # tinker://<model>/<kind>/<name>
    model_id: str
    kind: Literal["weights", "sampler_weights", "external_weights"]
    name: str
    base_model: str
    spec: Spec
    size_bytes: int
    created_at: float
    expires_at: float | None = None
    user_metadata: dict[str, str] = field(default_factory=dict[str, str])
    seq_id: int | None = None  # the op that made it
    public: bool = False  # may be read by every owner
