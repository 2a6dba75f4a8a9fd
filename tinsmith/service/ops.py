"""What the service queues, batches and answers: Op, Batch, Outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    Partial,
    SampleJob,
    SampleResult,
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
    SAVE = "save_weights"
    SAVE_SAMPLER = "save_weights_for_sampler"
    SAVE_EXTERNAL = "save_weights_external"
    LOAD = "load_weights"
    SAMPLE = "sample"
    DROP = "drop"
    REFUSED = "refused"  # only a number in the journal


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward or forward_backward request."""

    items: tuple[TrainItem, ...]
    loss: LossSpec
    backward: bool

    @property
    def nbytes(self) -> int:
        """What it takes in memory, which may be far more than the request was long."""
        arrays = (array for item in self.items for array in (item.tokens, *item.inputs.values()))
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True)
class Freeze:
    """A copy of the weights for one sampler, which lives as long as its session."""

    sampler: WeightsId


@dataclass(frozen=True)
class Save:
    """A named checkpoint; `optimizer` says whether training can go on from it exactly."""

    path: str
    seq_id: int  # which op made it: the same one again finds its work done
    base_model: str
    spec: Mapping[str, object]
    optimizer: bool
    overwrite: bool = False
    ttl_seconds: float | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    recipients: tuple[str, ...] = ()  # age public keys: external weights are encrypted for them


@dataclass(frozen=True)
class Load:
    path: str
    directory: Path
    optimizer: bool


@dataclass(frozen=True)
class Create:
    """A new model, fresh or from a checkpoint."""

    spec: LoraSpec
    load: Load | None = None


@dataclass(frozen=True)
class Sample:
    """A sampling job; `source` is where its weights lie on disk, None if only in memory (or base)."""

    job: SampleJob
    source: Path | None = None
    last_n: int | None = None  # score only the last n prompt tokens
    # Hears the answer as it comes, from the worker's thread, instead of a future being finished.
    listener: Callable[[Partial | SampleResult | Exception], None] | None = None

    @property
    def nbytes(self) -> int:
        table = self.job.target_prompt
        return 8 * len(self.job.prompt) + (0 if table is None else table.nbytes)


@dataclass(frozen=True)
class Drop:
    """Lets a model go, and samplers with it."""

    reason: str
    samplers: tuple[WeightsId, ...] = ()


Payload: TypeAlias = Create | Pass | AdamSpec | Freeze | Save | Load | Sample | Drop


@dataclass(frozen=True, eq=False)
class Op:
    """One request on its way through the queue; a model's ops are numbered 0, 1, 2, ..."""

    future_id: str
    kind: OpKind
    model: ModelId | None
    seq_id: int | None
    payload: Payload
    again: bool = False  # done before a restart: the effect is needed once more, the answer is not


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
    ran: bool = True  # False: given up before it was carried out

    @classmethod
    def json(cls, value: Mapping[str, object]) -> Outcome:
        return cls(orjson.dumps(value))

    @classmethod
    def failure(cls, error: str, category: Category, *, ran: bool = True) -> Outcome:
        return cls(orjson.dumps({"error": error, "category": category}), JSON, error, category, ran)
