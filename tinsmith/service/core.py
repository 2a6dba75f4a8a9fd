"""Service: what every route calls. Requests are journalled, queued, carried out and answered."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinsmith.errors import RequestError, ServiceError
from tinsmith.service.engine.backend import Backend, LoraSpec, ModelInfo
from tinsmith.service.futures import Completion, Entry, FutureTable, LogKey
from tinsmith.service.ops import Drop, Freeze, Op, OpKind, Outcome, Payload, Sample
from tinsmith.service.store.checkpoints import CheckpointShelf
from tinsmith.service.store.rows import FutureRow, ModelRow, ResultRow, SamplerRow, SessionRow
from tinsmith.service.store.store import Store
from tinsmith.service.sweeper import (
    RESULT_SECONDS,
    is_idle,
    pause,
    stale_sessions,
    sweep_forever,
)
from tinsmith.service.tenants import (
    RESTARTED,
    Model,
    Sampler,
    Session,
    Tenants,
    spec_fields,
)
from tinsmith.service.wire.compat import CLONE_STRIDE
from tinsmith.service.worker import Worker

log = logging.getLogger(__name__)


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.token = token
        self.default_model = default_model
        self._backend = backend
        self._clock = clock
        self._idle_seconds = idle_seconds
        self.on_idle: Callable[[], None] = lambda: None
        self._store = Store.open(directory / "service.sqlite")
        self.shelf = CheckpointShelf(directory / "checkpoints", self._store)
        self.tenants = Tenants(self._store, self.shelf)
        self._worker = Worker(backend, self.shelf, self._finish)
        self._infos: dict[str, ModelInfo] = {}
        self._last_request = clock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._futures = FutureTable()
        self._sweeping: asyncio.Task[None] | None = None
        self._closed = False

    # life

    async def start(self) -> None:
        """Ends what an earlier process left pending, then begins to work."""
        self.loop = asyncio.get_running_loop()
        lost = Outcome.failure(f"{RESTARTED}.", "server")
        row = _result_row("", lost)
        count = await asyncio.wrap_future(self._store.fail_pending(row))
        if count:
            log.warning("%d requests of an earlier process were not finished", count)
        self._worker.start()
        self._sweeping = asyncio.create_task(sweep_forever(self.sweep, pause(self._idle_seconds)))

    def begin_close(self) -> None:
        """Lets long polls go, so that their connections can end."""
        self._closed = True
        self._futures.close()

    async def close(self) -> None:
        self.begin_close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.to_thread(self._worker.stop)
        await asyncio.to_thread(self._store.close)

    def touch(self) -> None:
        """A request came in."""
        self._last_request = self._clock()

    async def sweep(self) -> None:
        now = self._clock()
        live = {s.id: s.heard_at for s in self.tenants.sessions.values() if s.finished is None}
        for session_id in stale_sessions(live, now):
            await self.finish_session(session_id, "no heartbeat for a long time")
        self._store.prune_futures(time.time() - RESULT_SECONDS)
        if is_idle(self._last_request, self._worker.busy, now, self._idle_seconds):
            self.on_idle()

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
        )
        await asyncio.wrap_future(self._store.add_session(row))
        self.tenants.add_session(Session(row.id, self._clock()))
        return row.id

    def heartbeat(self, session_id: str) -> None:
        self.tenants.session(session_id, self._clock())
        self._store.touch_session(session_id, time.time())

    async def finish_session(self, session_id: str, reason: str) -> None:
        """Ends a session; the first reason stays. What was queued before is still carried out."""
        try:
            session = self.tenants.session(session_id, self._clock())
        except RequestError as error:
            if error.status == 410:
                return
            raise
        models, samplers = self.tenants.end_session(session, reason)
        self._futures.close_logs(samplers)
        for model in models:
            self._worker.submit(
                Op(
                    f"{model}/drop",
                    OpKind.DROP,
                    model,
                    None,
                    Drop(f"the session is over ({reason})"),
                )
            )
        await asyncio.wrap_future(self._store.finish_session(session_id, reason))

    # models

    async def describe(self, base_model: str) -> ModelInfo:
        """What is known of a base model; reading it for the first time happens off the loop."""
        info = self._infos.get(base_model)
        if info is None:
            info = await asyncio.to_thread(self._backend.describe, base_model)
            self._infos[base_model] = info
        return info

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
        if self.tenants.live_model(model_id) is None and self._store.model(model_id) is None:
            info = await self.describe(spec.base_model)
            self.tenants.add_model(Model(model_id, session.id, spec, info))
            row = ModelRow(
                model_id, session.id, spec.base_model, spec_fields(spec), time.time(), metadata
            )
            await asyncio.wrap_future(self._store.add_model(row))
        return await self.submit(OpKind.CREATE, model_id, 0, spec, body), model_id

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
        await asyncio.wrap_future(self._store.add_sampler(row))
        return sampler_id

    async def freeze(self, model: Model, seq_id: int, number: int, body: bytes) -> str:
        """Queues a copy of the model's weights, in memory, as a sampler."""
        sampler_id = f"{model.session}:sample:{number}"
        if not self.tenants.has_sampler(sampler_id):
            base_model = model.spec.base_model
            self.tenants.add_sampler(Sampler(sampler_id, model.session, base_model, sampler_id))
            row = SamplerRow(sampler_id, model.session, base_model, time.time(), model_id=model.id)
            await asyncio.wrap_future(self._store.add_sampler(row))
        return await self.submit(OpKind.FREEZE, model.id, seq_id, Freeze(sampler_id), body)

    async def join_sampler(self, sampler_id: str) -> int:
        self.sampler(sampler_id)
        number = await asyncio.wrap_future(self._store.join_sampler(sampler_id))
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

    def refuse(self, model_id: str, seq_id: int) -> None:
        """The request with this number was refused: the client goes on with the next number."""
        model = self.tenants.live_model(model_id)
        if model is not None and seq_id > 0 and self._futures.get(f"{model_id}/{seq_id}") is None:
            model.refused.add(seq_id)
            self._worker.skip(model_id, seq_id)

    async def submit_sample(
        self, sampler: Sampler, seq_id: int, sample: Sample, body: bytes
    ) -> str:
        """Queues a sample; the same (sampler, seq_id) again gives the same future."""
        future_id = f"{sampler.id}/{seq_id}"
        op = Op(future_id, OpKind.SAMPLE, None, seq_id, sample)
        row = FutureRow(
            future_id, OpKind.SAMPLE, seq_id, time.time(), sampler_id=sampler.id, payload=body
        )
        return await self._submit(op, row, LogKey(sampler.id, seq_id // CLONE_STRIDE))

    async def _submit(self, op: Op, row: FutureRow, key: LogKey | None) -> str:
        if self._closed:
            raise ServiceError("the service is stopping; ask again when it is back.")
        entry = self._futures.get(op.future_id)
        if entry is not None:
            await asyncio.shield(entry.acknowledged)
            return self._same(entry, op)
        entry = self._futures.add(op, key)
        try:
            new = await asyncio.wrap_future(self._store.add_future(row))
        except BaseException as error:
            self._futures.remove([op.future_id])
            if not entry.acknowledged.done():
                entry.acknowledged.set_exception(error)
                entry.acknowledged.exception()  # it may be that nobody else waits for it
            raise
        entry.acknowledged.set_result(True)
        if new:
            self._worker.submit(op)
        else:  # of an earlier process: its answer is in the store
            self._futures.remove([op.future_id])
        return op.future_id

    def _same(self, entry: Entry, op: Op) -> str:
        if entry.op.kind is not op.kind:
            raise RequestError(
                f"seq_id {op.seq_id} was used for {entry.op.kind} already and cannot be used for "
                f"{op.kind}; number the requests of a client 1, 2, 3, ..."
            )
        return op.future_id

    async def result(self, future_id: str, seconds: float) -> Outcome | None:
        """The outcome, waited for up to `seconds`; None when there is none yet."""
        entry = self._futures.get(future_id)
        if entry is not None:
            return await self._futures.wait(entry, seconds)
        row = self._store.result(future_id)
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
            for row in self._store.results_of_sampler(sampler_id, first, first + CLONE_STRIDE):
                if self._futures.get(row.id) is None:
                    self._futures.complete(key, row.id, _outcome(row))
        return await self._futures.completions(key, cursor, seconds)

    def sampler_exists(self, sampler_id: str) -> None:
        """Results can be fetched from samplers whose weights are gone, but not from unknown ones."""
        if not self.tenants.has_sampler(sampler_id) and self._store.sampler(sampler_id) is None:
            raise RequestError(f"there is no sampler {sampler_id}.", status=404)

    def retrieved(self, sampler_id: str, future_ids: Sequence[str]) -> None:
        """The client has these results; they need not be kept."""
        own = [one for one in future_ids if one.startswith(f"{sampler_id}/")]
        if own:
            self._futures.remove(own)
            self._store.delete_futures(own)

    async def cancel(self, future_id: str) -> bool:
        """Whether there was anything to cancel."""
        entry = self._futures.get(future_id)
        if entry is None or entry.outcome is not None:
            return False
        await asyncio.shield(entry.acknowledged)
        self._worker.cancel(entry.op)
        return True

    def _finish(self, pairs: Sequence[tuple[Op, Outcome]]) -> None:
        """From the worker thread: outcomes go to the store and to whoever waits."""
        kept = [(op, outcome) for op, outcome in pairs if op.kind is not OpKind.DROP]
        if not kept or self.loop is None or self.loop.is_closed():
            return
        rows = [_result_row(op.future_id, outcome) for op, outcome in kept]
        self._store.finish_futures(rows).add_done_callback(_note_failure)
        self.loop.call_soon_threadsafe(self._futures.resolve, kept)


def _note_failure(written: Future[None]) -> None:
    """Results that could not be stored are still in memory, but somebody should know."""
    error = written.exception()
    if error is not None:
        log.error("results were not stored: %s", error)


def _result_row(future_id: str, outcome: Outcome) -> ResultRow:
    return ResultRow(
        future_id,
        outcome.payload,
        outcome.content_type,
        time.time(),
        outcome.error,
        outcome.category,
    )


def _outcome(row: ResultRow) -> Outcome:
    category = "user" if row.category == "user" else "server"
    return Outcome(row.result, row.content_type, row.error, category if row.error else None)
