"""Service: what every route calls; sessions, models and samplers, and the start and end of it all."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinsmith.errors import RequestError
from tinsmith.service.desk import Desk
from tinsmith.service.engine.backend import (
    Backend,
    LoraSpec,
    ModelInfo,
    Partial,
    SampleJob,
    SampleResult,
)
from tinsmith.service.engine.checks import check_sample
from tinsmith.service.engine.sources import served_by_default
from tinsmith.service.keeper import Keeper
from tinsmith.service.ops import (
    Drop,
    Freeze,
    Op,
    OpKind,
    Outcome,
)
from tinsmith.service.recovery import Recovery
from tinsmith.service.requests import create_of
from tinsmith.service.store.catalog import Catalog
from tinsmith.service.store.checkpoints import SCHEME, CheckpointShelf
from tinsmith.service.store.rows import (
    Checkpoint,
    ModelRow,
    SamplerRow,
    SessionRow,
)
from tinsmith.service.store.snapshots import SnapshotShelf
from tinsmith.service.store.store import Store
from tinsmith.service.sweeper import (
    RESULT_SECONDS,
    is_idle,
    pause,
    stale_sessions,
    sweep_forever,
)
from tinsmith.service.tenants import (
    CALLER,
    Model,
    Sampler,
    Session,
    Tenants,
    spec_fields,
)
from tinsmith.service.worker import Worker

log = logging.getLogger(__name__)

COPIES_SHARE_OF_DISK = 4  # of what is free, for samplers without a name


@dataclass(frozen=True)
class SessionFacts:
    """What a client says of itself when it opens a session."""

    tags: list[str]
    user_metadata: dict[str, Any]
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class Service:
    """All methods are for the event loop."""

    def __init__(
        self,
        backend: Backend,
        directory: Path,
        *,
        token: str = "",
        default_model: str | None = None,
        idle_seconds: float = 0.0,
        drain_seconds: float = 10.0,
        adapter_bytes: int | None = None,
        paths_allowed: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.token = token
        self.default_model = default_model
        self._backend = backend
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._drain_seconds = drain_seconds
        self._paths_allowed = paths_allowed
        self.on_idle: Callable[[], None] = lambda: None
        self.store = Store.open(directory / "service.sqlite")
        self.shelf = CheckpointShelf(directory / "checkpoints", self.store, readable=self._may_read)
        self.catalog = Catalog(self.store, self.shelf)
        self._snapshots = SnapshotShelf(directory)
        self.tenants = Tenants(self.store, self.shelf, self._snapshots.copies)
        copies_bytes = shutil.disk_usage(directory).free // COPIES_SHARE_OF_DISK
        self.keeper = Keeper(self._snapshots, self.store, copies_bytes)
        self.desk = Desk(self.store, self.tenants, clock)
        self._worker = Worker(
            backend,
            self.shelf,
            self.keeper,
            self.desk.finish,
            adapter_bytes or backend.adapter_budget(),
        )
        self._infos: dict[str, ModelInfo] = {}
        self._last_request = clock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._sweeping: asyncio.Task[None] | None = None

    # life

    async def start(self) -> None:
        """Takes up what an earlier process left, then begins to work."""
        self.loop = asyncio.get_running_loop()
        recovery = Recovery(
            self.store, self.tenants, self.shelf, self._snapshots, self._backend, self._worker
        )
        found = await asyncio.to_thread(recovery.run, self._clock())
        await self.desk.open(self._worker, found.ops, found.answers)
        self._worker.start()
        self._sweeping = asyncio.create_task(sweep_forever(self.sweep, pause(self._idle_seconds)))

    def begin_close(self) -> None:
        """Takes no more requests, and lets long polls go, so that their connections can end."""
        self.desk.close()

    async def close(self) -> None:
        """Finishes what is queued, as far as the time for it goes; the rest is in the journal."""
        self.begin_close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.to_thread(self._worker.stop, self._drain_seconds)
        await asyncio.to_thread(self.keeper.close)
        await asyncio.to_thread(self.store.close)

    def touch(self) -> None:
        """A request came in."""
        self._last_request = self._clock()

    def health(self) -> dict[str, str]:
        """Whether all is well; if not, what is wrong and what to do."""
        trouble = self.keeper.trouble or self.store.trouble
        return {"status": "ok"} if trouble is None else {"status": "degraded", "trouble": trouble}

    def counts(self) -> dict[str, int]:
        """How much is going on."""
        return {
            **self._worker.counts(),
            "sessions": sum(s.finished is None for s in self.tenants.sessions.values()),
        }

    def memory(self) -> dict[str, int]:
        """Bytes that are set aside, by what for."""
        report = self._backend.memory_report()
        sizes = {what: size for what, size in report.items() if isinstance(size, int)}
        return {**sizes, "queued_requests": self.desk.queued_bytes}

    async def sweep(self) -> None:
        now = self._clock()
        live = {s.id: s.heard_at for s in self.tenants.sessions.values() if s.finished is None}
        for session_id in stale_sessions(live, now):
            session = self.tenants.sessions[session_id]
            await self._end_session(session, "lost", "no heartbeat for a long time")
        self.tenants.forget_ended()
        self.store.prune_futures(time.time() - RESULT_SECONDS)
        await asyncio.to_thread(self.catalog.remove_expired, time.time())
        if is_idle(self._last_request, self._worker.busy, now, self._idle_seconds):
            self.on_idle()

    def _may_read(self, checkpoint: Checkpoint) -> bool:
        """A checkpoint of the caller's, or one that its owner made public."""
        session = self.store.session(checkpoint.model_id.partition(":")[0])
        return checkpoint.public or (session is not None and session.owner == CALLER.get())

    # sessions

    async def open_session(self, facts: SessionFacts) -> str:
        now = time.time()
        row = SessionRow(
            id=str(uuid.uuid4()),
            created_at=now,
            heartbeat_at=now,
            tags=facts.tags,
            user_metadata=facts.user_metadata,
            sdk_version=facts.sdk_version,
            project_id=facts.project_id,
            display_name=facts.display_name,
            owner=CALLER.get(),
        )
        await asyncio.wrap_future(self.store.add_session(row))
        self.tenants.add_session(Session(row.id, self._clock(), row.owner))
        return row.id

    def heartbeat(self, session_id: str) -> None:
        self.tenants.session(session_id, self._clock())
        self.store.touch_session(session_id, time.time())

    async def finish_session(self, session_id: str, reason: str, detail: str | None = None) -> None:
        """Ends a session; the first reason stays. What was queued before is still carried out."""
        session = self.tenants.known_session(session_id, self._clock())
        if session.finished is None:
            await self._end_session(session, reason, detail)

    async def _end_session(self, session: Session, reason: str, detail: str | None) -> None:
        models, samplers = self.tenants.end_session(session, detail or reason)
        self.desk.forget(samplers)
        # First: should the service die now, nobody would speak for what is left.
        await asyncio.wrap_future(
            self.store.finish_session(session.id, reason, detail, time.time())
        )
        session.stored = True
        for model in models:
            copies = tuple(self.store.copies(model))
            self._drop(model, Drop(f"the session is over ({detail or reason})", copies))

    def _drop(self, model_id: str, drop: Drop) -> None:
        self._worker.submit(Op(f"{model_id}/drop", OpKind.DROP, model_id, None, drop))

    # models

    async def describe(self, base_model: str) -> ModelInfo:
        """What is known of a base model; reading it for the first time happens off the loop."""
        info = self._infos.get(base_model)
        if info is None:
            self._check_name(base_model)
            info = await asyncio.to_thread(self._backend.describe, base_model)
            self._infos[base_model] = info
        return info

    def _check_name(self, base_model: str) -> None:
        """Whoever comes from another machine may not have this one's files opened."""
        if self._paths_allowed or base_model in served_by_default():
            return
        path = Path(base_model.partition(":")[0]).expanduser()
        if base_model.startswith((".", "/", "~")) or path.suffix == ".gguf" or path.exists():
            raise RequestError(
                f"{base_model!r} is a path, and this service takes names only: ask for "
                f"{' or '.join(served_by_default())}, or a model of the Hugging Face hub by its id."
            )

    def known_models(self) -> list[ModelInfo]:
        return list(self._infos.values())

    def model(self, model_id: str) -> Model:
        return self.tenants.model(model_id, self._clock())

    async def create_model(
        self, session_id: str, number: int, spec: LoraSpec, metadata: dict[str, Any], body: bytes
    ) -> tuple[str, str]:
        """The future and the id of a new model; the same number again gives the same model."""
        session = self.tenants.session(session_id, self._clock())
        model_id = f"{session.id}:train:{number}"
        known = self.tenants.live_model(model_id)
        if known is not None:
            spec = known.spec  # of the first request with this number, seed included
        elif self.store.model(model_id) is None:
            info = await self.describe(spec.base_model)
            self.tenants.add_model(Model(model_id, session.id, spec, info))
            row = ModelRow(
                model_id, session.id, spec.base_model, spec_fields(spec), time.time(), metadata
            )
            await asyncio.wrap_future(self.store.add_model(row))
        create = create_of(body, spec, self.shelf)
        return await self.desk.submit(OpKind.CREATE, model_id, 0, create, body), model_id

    async def unload(self, model_id: str) -> str:
        """Lets a model go; its checkpoints and samplers stay. The future is finished at once."""
        model = self.model(model_id)
        self.tenants.drop_model(model)
        await asyncio.wrap_future(self.store.drop_model(model_id, "unloaded by its client"))
        self._drop(model_id, Drop("it was unloaded"))
        done = Outcome.json({"model_id": model_id, "type": "unload_model"})
        return await self.desk.answered(f"{model_id}/unload", OpKind.DROP, model_id, done)

    # samplers

    def sampler(self, sampler_id: str) -> Sampler:
        return self.tenants.sampler(sampler_id, self._clock())

    async def create_sampler(
        self, session_id: str, number: int, base_model: str | None, model_path: str | None
    ) -> str:
        session = self.tenants.session(session_id, self._clock())
        sampler_id = f"{session.id}:sample:{number}"
        if self.tenants.has_sampler(sampler_id):
            return sampler_id
        if model_path is None and base_model is None:
            raise RequestError("a sampler needs a base_model or a model_path.")
        sampler = self.tenants.make_sampler(sampler_id, session.id, base_model or "", model_path)
        await self.describe(sampler.base_model)
        self.tenants.add_sampler(sampler)
        row = SamplerRow(sampler_id, session.id, sampler.base_model, time.time(), model_path)
        await asyncio.wrap_future(self.store.add_sampler(row))
        return sampler_id

    async def freeze(self, model: Model, seq_id: int, freeze: Freeze, body: bytes) -> str:
        """Queues a copy of the model's weights as a sampler without a name."""
        sampler_id = freeze.sampler
        if not self.tenants.has_sampler(sampler_id):
            base_model = model.spec.base_model
            sampler = self.tenants.copy_sampler(sampler_id, model.session, base_model)
            self.tenants.add_sampler(sampler)
            row = SamplerRow(sampler_id, model.session, base_model, time.time(), model_id=model.id)
            await asyncio.wrap_future(self.store.add_sampler(row))
        return await self.desk.submit(OpKind.FREEZE, model.id, seq_id, freeze, body)

    async def join_sampler(self, sampler_id: str) -> int:
        self.sampler(sampler_id)
        number = await asyncio.wrap_future(self.store.join_sampler(sampler_id))
        if number is None:
            raise RequestError(f"there is no sampler {sampler_id}.", status=404)
        return number

    async def target(self, name: str) -> Sampler:
        """What samples can be asked of without a session: a base model or a checkpoint's path."""
        path = name if name.startswith(SCHEME) else None
        sampler = self.tenants.make_sampler("", "", name, path)
        await self.describe(sampler.base_model)
        return sampler

    async def generate(
        self, sampler: Sampler, job: SampleJob
    ) -> AsyncGenerator[Partial | SampleResult]:
        """A sample without a session or a journal: its parts as they come, then the result."""
        check_sample(job, await self.describe(sampler.base_model))
        async with aclosing(self.desk.generate(sampler, job)) as parts:
            async for part in parts:
                yield part
