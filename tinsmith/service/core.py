"""Service: what every route calls. Requests are journalled, queued, carried out and answered."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinsmith.errors import RequestError, ServiceError
from tinsmith.service import metrics
from tinsmith.service.engine.backend import (
    AdamSpec,
    Backend,
    LoraSpec,
    ModelInfo,
    Partial,
    SampleJob,
    SampleResult,
)
from tinsmith.service.engine.checks import check_sample
from tinsmith.service.engine.sources import served_by_default
from tinsmith.service.futures import Completion, Entry, FutureTable, LogKey
from tinsmith.service.keeper import Keeper
from tinsmith.service.ops import (
    Create,
    Drop,
    Freeze,
    Load,
    Op,
    OpKind,
    Outcome,
    Pass,
    Payload,
    Sample,
)
from tinsmith.service.recovery import Recovery
from tinsmith.service.requests import create_of
from tinsmith.service.store.catalog import Catalog
from tinsmith.service.store.checkpoints import SCHEME, CheckpointShelf
from tinsmith.service.store.rows import (
    Checkpoint,
    FutureRow,
    ModelRow,
    ResultRow,
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
from tinsmith.service.wire.compat import CLONE_STRIDE
from tinsmith.service.worker import Worker

log = logging.getLogger(__name__)

MAX_WAITING_SAMPLES = 20_000
MAX_QUEUED_BYTES = 2 << 30
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
    """Methods are for the event loop; the worker thread answers through `_finish`."""

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
        self._worker = Worker(
            backend,
            self.shelf,
            self.keeper,
            self._finish,
            adapter_bytes or backend.adapter_budget(),
        )
        self._infos: dict[str, ModelInfo] = {}
        self._last_request = clock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._futures = FutureTable()
        self._queued_bytes = 0
        self._queued: dict[str, tuple[int, float]] = {}  # bytes in memory, since when
        self._sweeping: asyncio.Task[None] | None = None
        self._closed = False

    # life

    async def start(self) -> None:
        """Takes up what an earlier process left, then begins to work."""
        self.loop = asyncio.get_running_loop()
        recovery = Recovery(
            self.store, self.tenants, self.shelf, self._snapshots, self._backend, self._worker
        )
        found = await asyncio.to_thread(recovery.run, self._clock())
        rows = [_result_row(future_id, outcome) for future_id, outcome in found.answers]
        await asyncio.wrap_future(self.store.finish_futures(rows))
        metrics.count("tinsmith_replayed_ops_total", len(found.ops))
        for op in found.ops:
            if not op.again:
                self._futures.add(op, _log_key(op)).acknowledged.set_result(True)
            self._worker.submit(op)
        self._worker.start()
        self._sweeping = asyncio.create_task(sweep_forever(self.sweep, pause(self._idle_seconds)))

    def begin_close(self) -> None:
        """Takes no more requests, and lets long polls go, so that their connections can end."""
        self._closed = True
        self._futures.close()

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
        return {**sizes, "queued_requests": self._queued_bytes}

    async def sweep(self) -> None:
        now = self._clock()
        live = {s.id: s.heard_at for s in self.tenants.sessions.values() if s.finished is None}
        for session_id in stale_sessions(live, now):
            session = self.tenants.sessions[session_id]
            await self._end_session(session, "lost", "no heartbeat for a long time")
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
        self._futures.close_logs(samplers)
        # First: should the service die now, nobody would speak for what is left.
        await asyncio.wrap_future(
            self.store.finish_session(session.id, reason, detail, time.time())
        )
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
        if self.tenants.live_model(model_id) is None and self.store.model(model_id) is None:
            info = await self.describe(spec.base_model)
            self.tenants.add_model(Model(model_id, session.id, spec, info))
            row = ModelRow(
                model_id, session.id, spec.base_model, spec_fields(spec), time.time(), metadata
            )
            await asyncio.wrap_future(self.store.add_model(row))
        create = create_of(body, spec, self.shelf)
        return await self.submit(OpKind.CREATE, model_id, 0, create, body), model_id

    async def unload(self, model_id: str) -> str:
        """Lets a model go; its checkpoints and samplers stay. The future is finished at once."""
        model = self.model(model_id)
        self.tenants.drop_model(model)
        await asyncio.wrap_future(self.store.drop_model(model_id, "unloaded by its client"))
        self._drop(model_id, Drop("it was unloaded"))
        future_id = f"{model_id}/unload"
        row = FutureRow(future_id, OpKind.DROP, -1, time.time(), model_id=model_id)
        await asyncio.wrap_future(self.store.add_future(row))
        done = Outcome.json({"model_id": model_id, "type": "unload_model"})
        await asyncio.wrap_future(self.store.finish_futures([_result_row(future_id, done)]))
        return future_id

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
        return await self.submit(OpKind.FREEZE, model.id, seq_id, freeze, body)

    async def join_sampler(self, sampler_id: str) -> int:
        self.sampler(sampler_id)
        number = await asyncio.wrap_future(self.store.join_sampler(sampler_id))
        if number is None:
            raise RequestError(f"there is no sampler {sampler_id}.", status=404)
        return number

    # futures

    async def submit(
        self, kind: OpKind, model_id: str, seq_id: int, payload: Payload, body: bytes
    ) -> str:
        """Queues a model's op; the same (model, seq_id) again gives the same future."""
        future_id = f"{model_id}/{seq_id}"
        model = self.tenants.live_model(model_id)
        if model is not None and seq_id in model.refused:
            raise RequestError(
                f"seq_id {seq_id} was used for a request that was refused; go on with the next number."
            )
        op = Op(future_id, kind, model_id, seq_id, payload)
        row = FutureRow(future_id, kind, seq_id, time.time(), model_id=model_id, payload=body)
        return await self._submit(op, row, None)

    async def refuse(self, model_id: str, seq_id: int, reason: str) -> None:
        """The request with this number was refused: the client goes on with the next number."""
        model = self.tenants.live_model(model_id)
        future_id = f"{model_id}/{seq_id}"
        if model is None or self.tenants.sessions[model.session].owner != CALLER.get():
            return
        if not 0 < seq_id < 2**63 or self._futures.get(future_id) or self.store.known(future_id):
            return
        model.refused.add(seq_id)
        self._worker.skip(model_id, seq_id)
        # A restart must not wait for this number either.
        row = FutureRow(future_id, OpKind.REFUSED, seq_id, time.time(), model_id=model_id)
        await asyncio.wrap_future(self.store.add_future(row))
        refused = _result_row(future_id, Outcome.failure(reason, "user", ran=False))
        await asyncio.wrap_future(self.store.finish_futures([refused]))

    async def submit_sample(
        self, sampler: Sampler, seq_id: int, sample: Sample, body: bytes
    ) -> str:
        """Queues a sample; the same (sampler, seq_id) again gives the same future."""
        future_id = f"{sampler.id}/{seq_id}"
        self._check_samples()
        op = Op(future_id, OpKind.SAMPLE, None, seq_id, sample)
        row = FutureRow(
            future_id, OpKind.SAMPLE, seq_id, time.time(), sampler_id=sampler.id, payload=body
        )
        return await self._submit(op, row, _log_key(op))

    def _check_samples(self) -> None:
        if self._worker.waiting_samples >= MAX_WAITING_SAMPLES:
            raise RequestError(
                f"{MAX_WAITING_SAMPLES} samples are waiting already; ask again in a moment.", 429
            )

    async def target(self, name: str) -> Sampler:
        """What samples can be asked of without a session: a base model or a checkpoint's path."""
        path = name if name.startswith(SCHEME) else None
        sampler = self.tenants.make_sampler("", "", name, path)
        await self.describe(sampler.base_model)
        return sampler

    async def generate(
        self, sampler: Sampler, job: SampleJob
    ) -> AsyncGenerator[Partial | SampleResult]:
        """A sample that is not journalled: its parts as they come (if asked for), then the result."""
        if self._closed or self.loop is None:
            raise ServiceError("the service is stopping; ask again when it is back.")
        self._check_samples()
        check_sample(job, await self.describe(sampler.base_model))
        news: asyncio.Queue[Partial | SampleResult | Exception] = asyncio.Queue()
        loop = self.loop

        def listener(item: Partial | SampleResult | Exception) -> None:
            loop.call_soon_threadsafe(news.put_nowait, item)

        sample = Sample(job, sampler.source, listener=listener)
        op = Op(f"{CALLER.get()}:direct:{uuid.uuid4()}", OpKind.SAMPLE, None, None, sample)
        self._worker.submit(op)
        item = None
        try:
            while not isinstance(item, (SampleResult, Exception)):
                item = await news.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            if not isinstance(item, (SampleResult, Exception)):
                self._worker.cancel(op)

    async def _submit(self, op: Op, row: FutureRow, key: LogKey | None) -> str:
        if self._closed:
            raise ServiceError("the service is stopping; ask again when it is back.")
        entry = self._futures.get(op.future_id)
        if entry is not None:
            await asyncio.shield(entry.acknowledged)
            return self._same(entry, op)
        self._check_room(op, row)
        entry = self._futures.add(op, key)
        try:
            with metrics.timed("tinsmith_submit_seconds", kind=op.kind):
                new = await asyncio.wrap_future(self.store.add_future(row))
        except BaseException as error:
            self._futures.remove([op.future_id])
            self._queued_bytes -= self._queued.pop(op.future_id, (0, 0.0))[0]
            if not entry.acknowledged.done():
                entry.acknowledged.set_exception(error)
                entry.acknowledged.exception()  # it may be that nobody else waits for it
            raise
        entry.acknowledged.set_result(True)
        if new:
            self._worker.submit(op)
        else:  # of an earlier process: its answer is in the store
            self._futures.remove([op.future_id])
            self._queued_bytes -= self._queued.pop(op.future_id, (0, 0.0))[0]
        return op.future_id

    def _check_room(self, op: Op, row: FutureRow) -> None:
        """Requests that wait are in memory: too many of them are asked to come back later."""
        size = len(row.payload or b"")
        if isinstance(op.payload, (Pass, Sample)):
            size += op.payload.nbytes
        if self._queued and self._queued_bytes + size > MAX_QUEUED_BYTES:
            raise RequestError("too much is waiting already; ask again in a moment.", 429)
        self._queued[row.id] = (size, time.perf_counter())
        self._queued_bytes += size

    def _same(self, entry: Entry, op: Op) -> str:
        if entry.op.kind is not op.kind:
            raise RequestError(
                f"seq_id {op.seq_id} was used for {entry.op.kind} already and cannot be used for "
                f"{op.kind}; number the requests of a client 1, 2, 3, ..."
            )
        return op.future_id

    async def result(self, future_id: str, seconds: float) -> Outcome | None:
        """The outcome, waited for up to `seconds`; None when there is none yet."""
        self.tenants.check_owner(future_id, self._clock())
        entry = self._futures.get(future_id)
        if entry is not None:
            return await self._futures.wait(entry, seconds)
        row = self.store.result(future_id)
        if row is None:
            raise RequestError(
                f"there is no future {future_id}; its result was fetched or is too old.", status=404
            )
        return _outcome(row)

    async def finished(
        self, sampler_id: str, clone: int, cursor: int, seconds: float
    ) -> tuple[list[Completion], int]:
        """Which samples of one client finished after `cursor`; waits until there are some."""
        self.sampler_exists(sampler_id)
        key = LogKey(sampler_id, clone)
        if self._futures.open_log(key):
            # A client that polls from before a restart must hear of what ended with it.
            first = clone * CLONE_STRIDE
            for row in self.store.results_of_sampler(sampler_id, first, first + CLONE_STRIDE):
                if self._futures.get(row.id) is None:
                    self._futures.complete(key, row.id, _outcome(row))
        return await self._futures.completions(key, cursor, seconds)

    def sampler_exists(self, sampler_id: str) -> None:
        """Results can be fetched from samplers whose weights are gone, but not from unknown ones."""
        self.tenants.check_owner(sampler_id, self._clock())
        if not self.tenants.has_sampler(sampler_id) and self.store.sampler(sampler_id) is None:
            raise RequestError(f"there is no sampler {sampler_id}.", status=404)

    def retrieved(self, sampler_id: str, future_ids: Sequence[str]) -> None:
        """The client has these results; they need not be kept."""
        self.tenants.check_owner(sampler_id, self._clock())
        own = [one for one in future_ids if one.startswith(f"{sampler_id}/")]
        if own:
            self._futures.remove(own)
            self.store.delete_futures(own)

    async def cancel(self, future_id: str) -> bool:
        """Whether there was anything to cancel."""
        entry = self._futures.get(future_id)
        if entry is None or entry.outcome is not None:
            return False
        try:
            self.tenants.check_owner(future_id, self._clock())
        except RequestError:
            return False  # another's is answered like an unknown one
        await asyncio.shield(entry.acknowledged)
        self._worker.cancel(entry.op)
        return True

    def _finish(self, pairs: Sequence[tuple[Op, Outcome]]) -> Future[None]:
        """From the worker thread: outcomes go to the store and to whoever waits."""
        kept = [(op, outcome) for op, outcome in pairs if op.kind is not OpKind.DROP]
        rows = [
            _result_row(op.future_id, outcome, keep_payload=outcome.ran and _has_effect(op))
            for op, outcome in kept
        ]
        stored = self.store.finish_futures(rows)
        stored.add_done_callback(_note_failure)
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._resolve, kept)
        return stored

    def _resolve(self, pairs: Sequence[tuple[Op, Outcome]]) -> None:
        now = time.perf_counter()
        for op, outcome in pairs:
            metrics.count("tinsmith_ops_total", kind=op.kind, outcome=_how(outcome))
            if (queued := self._queued.pop(op.future_id, None)) is not None:
                size, since = queued
                self._queued_bytes -= size
                metrics.observe("tinsmith_op_seconds", now - since, kind=op.kind)
        self._futures.resolve(pairs)


def _how(outcome: Outcome) -> str:
    if not outcome.ran:
        return "cancelled"
    return "finished" if outcome.error is None else "failed"


def _has_effect(op: Op) -> bool:
    """Whether a model is another after it, so that it counts until that is on disk."""
    match op.payload:
        case Pass():
            return op.payload.backward
        case Create() | AdamSpec() | Freeze() | Load():
            return True
        case _:
            return False


def _log_key(op: Op) -> LogKey | None:
    """Which client of a sampler wants to hear of it."""
    if op.kind is not OpKind.SAMPLE:
        return None
    return LogKey(op.future_id.rpartition("/")[0], (op.seq_id or 0) // CLONE_STRIDE)


def _note_failure(written: Future[None]) -> None:
    """Results that could not be stored are still in memory, but somebody should know."""
    error = written.exception()
    if error is not None:
        log.error("results were not stored: %s", error)


def _result_row(future_id: str, outcome: Outcome, *, keep_payload: bool = False) -> ResultRow:
    return ResultRow(
        future_id,
        outcome.payload,
        outcome.content_type,
        time.time(),
        outcome.error,
        outcome.category,
        keep_payload,
    )


def _outcome(row: ResultRow) -> Outcome:
    category = "user" if row.category == "user" else "server"
    return Outcome(row.result, row.content_type, row.error, category if row.error else None)
