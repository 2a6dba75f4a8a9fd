"""Requests in, outcomes out: what is asked is journalled and queued, what is done is told and kept."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future

from tinsmith.errors import RequestError, ServiceError, StorageError
from tinsmith.service import metrics
from tinsmith.service.engine.backend import AdamSpec, Partial, SampleJob, SampleResult
from tinsmith.service.futures import Completion, Entry, FutureTable, LogKey
from tinsmith.service.ops import Create, Freeze, Load, Op, OpKind, Outcome, Pass, Payload, Sample
from tinsmith.service.store.rows import FutureRow, ResultRow
from tinsmith.service.store.store import Store
from tinsmith.service.tenants import CALLER, Sampler, Tenants
from tinsmith.service.wire.compat import CLONE_STRIDE
from tinsmith.service.worker import Worker

log = logging.getLogger(__name__)

MAX_WAITING_SAMPLES = 20_000
MAX_QUEUED_BYTES = 2 << 30
STOPPING = "the service is stopping; ask again when it is back."


class Desk:
    """Methods are for the event loop; the worker's thread tells what is done through `finish`."""

    def __init__(self, store: Store, tenants: Tenants, clock: Callable[[], float]) -> None:
        self._store = store
        self._tenants = tenants
        self._clock = clock
        self._futures = FutureTable()
        self.queued_bytes = 0
        self._queued: dict[str, tuple[int, float]] = {}  # bytes in memory, since when
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: Worker | None = None
        self._closed = False

    async def open(
        self, worker: Worker, left: Sequence[Op], answers: Sequence[tuple[str, Outcome]]
    ) -> None:
        """Takes up what an earlier process left: ops to carry out, and answers that are known."""
        self._loop, self._worker = asyncio.get_running_loop(), worker
        rows = [_result_row(future_id, outcome) for future_id, outcome in answers]
        await asyncio.wrap_future(self._store.finish_futures(rows))
        metrics.count("tinsmith_replayed_ops_total", len(left))
        for op in left:
            if not op.again:
                self._futures.add(op, _log_key(op)).acknowledged.set_result(True)
            worker.submit(op)

    def close(self) -> None:
        """Takes no more requests, and lets long polls go."""
        self._closed = True
        self._futures.close()

    def forget(self, samplers: set[str]) -> None:
        """Nobody asks any more what these finished."""
        self._futures.close_logs(samplers)

    @property
    def worker(self) -> Worker:
        if self._worker is None or self._closed:
            raise ServiceError(STOPPING)
        return self._worker

    # asking

    async def submit(
        self, kind: OpKind, model_id: str, seq_id: int, payload: Payload, body: bytes
    ) -> str:
        """Queues a model's op; the same (model, seq_id) again gives the same future."""
        future_id = f"{model_id}/{seq_id}"
        model = self._tenants.live_model(model_id)
        if model is not None and seq_id in model.refused:
            raise RequestError(
                f"seq_id {seq_id} was used for a request that was refused; go on with the next number."
            )
        op = Op(future_id, kind, model_id, seq_id, payload)
        row = FutureRow(future_id, kind, seq_id, time.time(), model_id=model_id, payload=body)
        return await self._submit(op, row, None)

    async def refuse(self, model_id: str, seq_id: int, reason: str) -> None:
        """The request with this number was refused: the client goes on with the next number."""
        model = self._tenants.live_model(model_id)
        future_id = f"{model_id}/{seq_id}"
        if model is None or self._tenants.sessions[model.session].owner != CALLER.get():
            return
        if not 0 < seq_id < 2**63 or self._futures.get(future_id) or self._store.known(future_id):
            return
        model.refused.add(seq_id)
        self.worker.skip(model_id, seq_id)
        # A restart must not wait for this number either.
        row = FutureRow(future_id, OpKind.REFUSED, seq_id, time.time(), model_id=model_id)
        await asyncio.wrap_future(self._store.add_future(row))
        refused = _result_row(future_id, Outcome.failure(reason, "user", ran=False))
        await asyncio.wrap_future(self._store.finish_futures([refused]))

    async def answered(self, future_id: str, kind: OpKind, model_id: str, answer: Outcome) -> str:
        """A future that is finished from the start."""
        row = FutureRow(future_id, kind, -1, time.time(), model_id=model_id)
        await asyncio.wrap_future(self._store.add_future(row))
        await asyncio.wrap_future(self._store.finish_futures([_result_row(future_id, answer)]))
        return future_id

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
        if self.worker.waiting_samples >= MAX_WAITING_SAMPLES:
            raise RequestError(
                f"{MAX_WAITING_SAMPLES} samples are waiting already; ask again in a moment.", 429
            )

    async def generate(
        self, sampler: Sampler, job: SampleJob
    ) -> AsyncGenerator[Partial | SampleResult]:
        """A sample that is not journalled: its parts as they come (if asked for), then the result."""
        self._check_samples()
        worker, loop = self.worker, asyncio.get_running_loop()
        news: asyncio.Queue[Partial | SampleResult | Exception] = asyncio.Queue()

        def listener(item: Partial | SampleResult | Exception) -> None:
            loop.call_soon_threadsafe(news.put_nowait, item)

        sample = Sample(job, sampler.source, listener=listener)
        op = Op(f"{CALLER.get()}:direct:{uuid.uuid4()}", OpKind.SAMPLE, None, None, sample)
        worker.submit(op)
        item = None
        try:
            while not isinstance(item, (SampleResult, Exception)):
                item = await news.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            if not isinstance(item, (SampleResult, Exception)):
                worker.cancel(op)

    async def _submit(self, op: Op, row: FutureRow, key: LogKey | None) -> str:
        worker = self.worker
        entry = self._futures.get(op.future_id)
        if entry is not None:
            await asyncio.shield(entry.acknowledged)
            return self._same(entry, op)
        self._check_room(op, row)
        entry = self._futures.add(op, key)
        # Whoever asked may go away meanwhile; what is journalled must be queued all the same.
        await asyncio.shield(asyncio.ensure_future(self._journal(worker, op, row, entry)))
        return op.future_id

    async def _journal(self, worker: Worker, op: Op, row: FutureRow, entry: Entry) -> None:
        try:
            with metrics.timed("tinsmith_submit_seconds", kind=op.kind):
                new = await asyncio.wrap_future(self._store.add_future(row))
        except StorageError as error:
            self._forget_queued(op)
            entry.acknowledged.set_exception(error)
            entry.acknowledged.exception()  # it may be that nobody else waits for it
            raise
        entry.acknowledged.set_result(True)
        if new:
            worker.submit(op)
        else:  # of an earlier process: its answer is in the store
            self._forget_queued(op)

    def _forget_queued(self, op: Op) -> None:
        self._futures.remove([op.future_id])
        self.queued_bytes -= self._queued.pop(op.future_id, (0, 0.0))[0]

    def _check_room(self, op: Op, row: FutureRow) -> None:
        """Requests that wait are in memory: too many of them are asked to come back later."""
        size = len(row.payload or b"")
        if isinstance(op.payload, (Pass, Sample)):
            size += op.payload.nbytes
        if self._queued and self.queued_bytes + size > MAX_QUEUED_BYTES:
            raise RequestError("too much is waiting already; ask again in a moment.", 429)
        self._queued[row.id] = (size, time.perf_counter())
        self.queued_bytes += size

    def _same(self, entry: Entry, op: Op) -> str:
        if entry.op.kind is not op.kind:
            raise RequestError(
                f"seq_id {op.seq_id} was used for {entry.op.kind} already and cannot be used for "
                f"{op.kind}; number the requests of a client 1, 2, 3, ..."
            )
        return op.future_id

    # hearing

    async def result(self, future_id: str, seconds: float) -> Outcome | None:
        """The outcome, waited for up to `seconds`; None when there is none yet."""
        self._tenants.check_owner(future_id, self._clock())
        entry = self._futures.get(future_id)
        if entry is not None:
            return await self._futures.wait(entry, seconds)
        row = self._store.result(future_id)
        if row is None:
            self._tenants.check_usable(future_id.partition("/")[0])
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
        self._tenants.check_owner(sampler_id, self._clock())
        if not self._tenants.has_sampler(sampler_id) and self._store.sampler(sampler_id) is None:
            raise RequestError(f"there is no sampler {sampler_id}.", status=404)

    def retrieved(self, sampler_id: str, future_ids: Sequence[str]) -> None:
        """The client has these results; they need not be kept."""
        self._tenants.check_owner(sampler_id, self._clock())
        own = [one for one in future_ids if one.startswith(f"{sampler_id}/")]
        if own:
            self._futures.remove(own)
            self._store.delete_futures(own)

    async def cancel(self, future_id: str) -> bool:
        """Whether there was anything to cancel."""
        entry = self._futures.get(future_id)
        if entry is None or entry.outcome is not None:
            return False
        try:
            self._tenants.check_owner(future_id, self._clock())
        except RequestError:
            return False  # another's is answered like an unknown one
        await asyncio.shield(entry.acknowledged)
        self.worker.cancel(entry.op)
        return True

    def finish(self, pairs: Sequence[tuple[Op, Outcome]]) -> Future[None]:
        """From the worker thread: outcomes go to the store and to whoever waits."""
        kept = [(op, outcome) for op, outcome in pairs if op.kind is not OpKind.DROP]
        rows = [
            _result_row(op.future_id, outcome, keep_payload=outcome.ran and _has_effect(op))
            for op, outcome in kept
        ]
        stored = self._store.finish_futures(rows)
        stored.add_done_callback(_note_failure)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._resolve, kept)
        return stored

    def _resolve(self, pairs: Sequence[tuple[Op, Outcome]]) -> None:
        now = time.perf_counter()
        for op, outcome in pairs:
            metrics.count("tinsmith_ops_total", kind=op.kind, outcome=_how(outcome))
            if (queued := self._queued.pop(op.future_id, None)) is not None:
                size, since = queued
                self.queued_bytes -= size
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
