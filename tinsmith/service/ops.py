"""What the service queues, batches and answers: Op, Batch, Outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, TypeAlias

import orjson

from tinsmith.service.engine.backend import (
    AdamSpec,
    LoraSpec,
    LossSpec,
    ModelId,
    SampleJob,
    TrainItem,
    WeightsId,
)

JSON = "application/json"
PROTOBUF = "application/x-protobuf"
Category: TypeAlias = Literal["user", "server"]


class OpKind(StrEnum):
    CREATE = "create_model"
    PASS = "forward_backward"
    OPTIM = "optim_step"
    FREEZE = "freeze"
    SAVE = "save"
    LOAD = "load"
    SAMPLE = "sample"
    DROP = "drop"


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward or forward_backward request."""

    items: tuple[TrainItem, ...]
    loss: LossSpec
    backward: bool


@dataclass(frozen=True)
class Freeze:
    """A copy of the weights for one sampler; it lives in memory only."""

    sampler: WeightsId


@dataclass(frozen=True)
class Save:
    """A named checkpoint; `optimizer` says whether training can go on from it exactly."""

    path: str
    base_model: str
    spec: Mapping[str, object]
    optimizer: bool
    overwrite: bool = False
    ttl_seconds: float | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Load:
    path: str
    directory: Path
    optimizer: bool


@dataclass(frozen=True)
class Sample:
    """A sampling job; `source` is where its weights lie on disk, None if only in memory (or base)."""

    job: SampleJob
    source: Path | None = None
    last_n: int | None = None  # score only the last n prompt tokens


@dataclass(frozen=True)
class Drop:
    """Lets a model go; its frozen copies go with it."""

    reason: str


Payload: TypeAlias = LoraSpec | Pass | AdamSpec | Freeze | Save | Load | Sample | Drop


@dataclass(frozen=True, eq=False)
class Op:
    """One request on its way through the queue; a model's ops are numbered 0, 1, 2, ..."""

    future_id: str
    kind: OpKind
    model: ModelId | None
    seq_id: int | None
    payload: Payload


@dataclass(frozen=True, eq=False)
class Batch:
    """Ops which are carried out in one turn, in this order."""

    kind: OpKind
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Outcome:
    """The answer to an op, ready to send."""

    payload: bytes
    content_type: str = JSON
    error: str | None = None
    category: Category | None = None

    @classmethod
    def json(cls, value: Mapping[str, object]) -> Outcome:
        return cls(orjson.dumps(value))

    @classmethod
    def failure(cls, error: str, category: Category) -> Outcome:
        return cls(orjson.dumps({"error": error, "category": category}), JSON, error, category)
