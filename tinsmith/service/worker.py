"""The one thread that calls the engine; exceptions become outcomes, and the thread goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from tinsmith.errors import ModelError, RequestError, ServiceError, TinsmithError
from tinsmith.service import metrics
from tinsmith.service.engine.backend import (
    AdamSpec,
    Backend,
    LoraSpec,
    ModelId,
    Partial,
    PassResult,
    SampleResult,
    WeightsId,
)
from tinsmith.service.keeper import Keeper
from tinsmith.service.ops import (
    PROTOBUF,
    Batch,
    Create,
    Drop,
    Freeze,
    Load,
    Op,
    OpKind,
    Outcome,
    Pass,
    Sample,
    Save,
)
from tinsmith.service.parking import Parking
from tinsmith.service.scheduler import Scheduler
from tinsmith.service.store.age import encrypt_directory
from tinsmith.service.store.checkpoints import CheckpointShelf
from tinsmith.service.wire import proto

log = logging.getLogger(__name__)

# Tells of finished ops; the future resolves when their answers are stored.
Finish: TypeAlias = Callable[[Sequence[tuple[Op, Outcome]]], Future[None]]
SAMPLES_IN_FLIGHT = 512  # requests that the engine has at once; the others wait their turn
BACKLOG = 256  # samples that wait in the engine itself, where there are no turns any more
CANCELLED = "cancelled by the client."


class Worker:
    """Admits samples, runs one training batch at a time, and decodes between its micro-batches."""

    def __init__(
        self,
        backend: Backend,
        shelf: CheckpointShelf,
        keeper: Keeper,
        finish: Finish,
        adapter_bytes: int,
    ) -> None:
        self._backend = backend
        self._shelf = shelf
        self._keeper = keeper
        self._finish = finish
        self._scheduler = Scheduler()
        # Guards the scheduler and what is asked of the thread.
        self._changed = threading.Condition()
        self._cancels: list[str] = []
        self._promised: set[WeightsId] = set()  # copies that queued ops will make
        self._stop_at: float | None = None
        self._busy = False
        self._thread = threading.Thread(target=self._run, name="tinsmith-worker", daemon=True)
        # Of the thread alone:
        self._training: tuple[Batch, Generator[None]] | None = None
        self._sampling: dict[str, Op] = {}
        self._deferred: dict[WeightsId | None, list[Op]] = {}  # samples of promised copies
        self._adapters = Parking(backend, keeper, adapter_bytes, self._weights_in_use)
        self._broken: dict[ModelId, str] = {}

    # any thread

    def start(self) -> None:
        self._thread.start()

    def submit(self, op: Op) -> None:
        with self._changed:
            if isinstance(op.payload, Freeze):
                self._promised.add(op.payload.sampler)
            self._scheduler.submit(op)
            self._changed.notify()

    def resume(self, model: ModelId, spec: LoraSpec, done: int) -> None:
        """Before the start: a model of an earlier process, whose ops up to `done` are on disk."""
        self._scheduler.resume(model, done + 1)
        if done >= 0:
            self._keeper.resume(model, done)
            self._adapters.park(model, spec, done)

    def give_up(self, model: ModelId, reason: str) -> None:
        """Before the start: a model of an earlier process that cannot be made again."""
        self._broken[model] = reason

    def cancel(self, op: Op) -> None:
        """An op that waits never runs; a sample that runs is stopped; other ops run to their end."""
        with self._changed:
            waiting = self._scheduler.cancel(op.future_id)
            if not waiting:
                self._cancels.append(op.future_id)
                self._changed.notify()
        if waiting:
            self._give_up([op], CANCELLED)

    def skip(self, model: ModelId, seq_id: int) -> None:
        with self._changed:
            self._scheduler.skip(model, seq_id)
            self._changed.notify()

    def stop(self, seconds: float = 0.0) -> None:
        """Ends when all that is queued is done, or after so long and the training op that runs then;
        what is left is in the journal. The state of every model is put on disk."""
        with self._changed:
            self._stop_at = time.monotonic() + seconds
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def busy(self) -> bool:
        with self._changed:
            return self._busy or self._scheduler.waiting

    @property
    def waiting_samples(self) -> int:
        return self._scheduler.waiting_samples

    def counts(self) -> dict[str, int]:
        """How much is going on, for whoever watches; some of it of a moment ago."""
        with self._changed:
            waiting = self._scheduler.counts()
        return {**waiting, "sampling": len(self._sampling), **self._adapters.counts()}

    # the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._cancels or self._active() or self._stop_at is not None):
                    self._busy = False
                    self._changed.wait()
                if self._is_over():
                    break
                self._busy = True
                cancels, self._cancels = self._cancels, []
            for future_id in cancels:
                self._stop_sample(future_id, RequestError(CANCELLED))
            self._turn()
        for future_id in list(self._sampling):
            self._stop_sample(future_id, None)
        self._adapters.keep_all()
        self._keeper.flush()

    def _active(self) -> bool:
        return self._training is not None or bool(self._sampling) or self._scheduler.waiting

    def _is_over(self) -> bool:
        if self._stop_at is None or self._training is not None:
            return False
        return not self._active() or time.monotonic() >= self._stop_at

    def _turn(self) -> None:
        """Takes in what is new, then one micro-batch of training and one step of decoding."""
        while (batch := self._next()) is not None:
            if batch.kind is OpKind.SAMPLE:
                self._admit(batch.ops)
            else:
                self._training = (batch, self._train(batch))
        if self._training is not None:
            batch, steps = self._training
            if next(steps, StopIteration) is StopIteration:
                self._training = None
                with self._changed:
                    self._scheduler.done(batch)
        if self._sampling:
            self._decode()

    def _next(self) -> Batch | None:
        with self._changed:
            room = min(SAMPLES_IN_FLIGHT - len(self._sampling), BACKLOG - self._backend.backlog)
            return self._scheduler.next(room)

    # training

    def _train(self, batch: Batch) -> Generator[None]:
        """Carries out a batch; yields between micro-batches so that decoding goes on."""
        for op in batch.ops:
            assert op.model is not None
            started = time.perf_counter()
            try:
                outcome = yield from self._carry_out(op, op.model)
            except Exception as error:  # noqa: BLE001 - a failed op is an outcome; the thread goes on
                outcome = _failure(op, error, ran=self._adapters.has(op.model))
                if op.kind is OpKind.CREATE:
                    self._broken[op.model] = outcome.error or ""
                elif isinstance(op.payload, Freeze):
                    self._unpromise(op.payload.sampler, outcome.error or "")
            stored = None if op.again else self._finish([(op, outcome)])
            if op.seq_id is not None:
                spent = time.perf_counter() - started
                self._adapters.reached(op.model, op.seq_id, spent, stored)
            if isinstance(op.payload, AdamSpec) and outcome.error is None:
                self._keep_if_due(op.model)

    def _keep_if_due(self, model: ModelId) -> None:
        try:
            self._adapters.keep_if_due(model)
        except Exception:  # the step is done and answered; its requests are kept instead
            log.exception("no copy of %s could be made", model)

    def _carry_out(self, op: Op, model: ModelId) -> Generator[None, None, Outcome]:
        payload, backend = op.payload, self._backend
        if isinstance(payload, Drop):
            self._drop(model, payload)
            return Outcome.json({})
        if model in self._broken:
            raise RequestError(f"the model {model} cannot be used: {self._broken[model]}")
        if isinstance(payload, Create):
            return self._create(model, payload)
        self._adapters.need(model)
        match payload:
            case Pass():
                return (yield from self._pass(model, payload))
            case AdamSpec():
                return Outcome.json({"metrics": backend.optim_step(model, payload)})
            case Freeze():
                self._freeze(model, payload.sampler)
                return Outcome.json({"path": None, "sampling_session_id": payload.sampler})
            case Save():
                size = self._save(model, payload)
                return Outcome.json({"path": payload.path, "size_bytes": size})
            case Load():
                self._load(model, payload, op.seq_id or 0)
                return Outcome.json({"path": payload.path, "model_id": model})
            case Sample():
                raise AssertionError("samples are admitted, not trained")

    def _create(self, model: ModelId, create: Create) -> Outcome:
        self._adapters.create(model, create.spec)
        if create.load is None:
            return Outcome.json({"model_id": model, "type": "create_model"})
        self._load(model, create.load, 0)
        return Outcome.json({"path": create.load.path, "model_id": model, "type": "load_weights"})

    def _load(self, model: ModelId, load: Load, seq_id: int) -> None:
        self._backend.load(model, load.directory, optimizer=load.optimizer)
        # Once this is answered the checkpoint may be deleted, and could not be loaded again.
        self._adapters.keep_now(model, seq_id)

    def _pass(self, model: ModelId, request: Pass) -> Generator[None, None, Outcome]:
        for step in self._backend.run_pass(
            model, request.items, request.loss, backward=request.backward
        ):
            if isinstance(step, PassResult):
                tokens = sum(len(item.tokens) for item in request.items)
                metrics.count("tinsmith_tokens_trained_total", tokens)
                payload = proto.encode_forward_backward(step.outputs, step.metrics)
                return Outcome(payload, PROTOBUF)
            yield
        raise RuntimeError("the engine ended a pass without a result")

    def _save(self, model: ModelId, save: Save) -> int:
        if (done := self._shelf.made_by(save.path, save.seq_id)) is not None:
            return done.size_bytes  # before a restart
        with self._shelf.writing(
            save.path,
            seq_id=save.seq_id,
            base_model=save.base_model,
            spec=dict(save.spec),
            overwrite=save.overwrite,
            ttl_seconds=save.ttl_seconds,
            user_metadata=dict(save.user_metadata),
        ) as directory:
            self._backend.save(model, directory, optimizer=save.optimizer)
            if save.recipients:
                encrypt_directory(directory, save.recipients)
        done = self._shelf.made_by(save.path, save.seq_id)
        return 0 if done is None else done.size_bytes

    def _freeze(self, model: ModelId, sampler: WeightsId) -> None:
        self._adapters.freeze(model, sampler)
        with self._changed:
            self._promised.discard(sampler)
        self._admit(self._deferred.pop(sampler, []))

    def _unpromise(self, sampler: WeightsId, reason: str) -> None:
        """A copy that will not come: samples of it need not wait."""
        with self._changed:
            self._promised.discard(sampler)
        self._give_up(self._deferred.pop(sampler, []), reason)

    def _drop(self, model: ModelId, drop: Drop) -> None:
        """Lets a model go, with all that still waits for it; and samplers, when they go too."""
        gone = f"the model {model} was let go: {drop.reason}"
        samplers = set(drop.samplers)
        for future_id, op in list(self._sampling.items()):
            if _weights(op) in samplers:
                self._stop_sample(future_id, RequestError(gone))
        self._adapters.drop(model, drop.samplers)
        self._broken.pop(model, None)
        with self._changed:
            left = self._scheduler.forget(model)
        for sampler in samplers | {
            op.payload.sampler for op in left if isinstance(op.payload, Freeze)
        }:
            self._unpromise(sampler, gone)
        self._give_up(left, gone)

    # sampling

    def _admit(self, ops: Sequence[Op]) -> None:
        for op in ops:
            try:
                assert isinstance(op.payload, Sample)
                if not self._ready(op.payload):
                    self._deferred.setdefault(op.payload.job.weights, []).append(op)
                    continue
                self._backend.add(op.future_id, op.payload.job)
                self._sampling[op.future_id] = op
            except Exception as error:  # noqa: BLE001 - a refused sample is an outcome
                self._tell([(op, error)])

    def _ready(self, sample: Sample) -> bool:
        """Sees to it that a sample's weights are in memory; False: they are still to be made."""
        weights, base_model = sample.job.weights, sample.job.base_model
        if weights is None or self._adapters.find_weights(weights, base_model, sample.source):
            return True
        with self._changed:
            if weights in self._promised:
                return False
        raise RequestError(
            f"the weights {weights} are not there any more: the checkpoint was deleted, or, of "
            "samplers made without a name, the oldest were let go for want of disk space."
        )

    def _decode(self) -> None:
        try:
            finished = self._backend.step()
            metrics.count("tinsmith_decode_steps_total")
        except Exception as error:
            log.exception("a decode step failed; %d samples are given up", len(self._sampling))
            for future_id in list(self._sampling):
                self._stop_sample(future_id, error)
            return
        done: list[tuple[Op, SampleResult | Exception]] = []
        for item in finished:
            if isinstance(item, Partial):
                op = self._sampling.get(item.job_id)
                if op is not None and isinstance(op.payload, Sample) and op.payload.listener:
                    op.payload.listener(item)
            elif (op := self._sampling.pop(item.job_id, None)) is not None:
                done.append((op, item.result))
        self._tell(done)

    def _stop_sample(self, future_id: str, reason: Exception | None) -> None:
        """Without a reason nobody is told: it will be done after a restart."""
        op = self._sampling.pop(future_id, None)
        if op is None:
            return
        try:
            self._backend.cancel(future_id)
        except Exception:
            log.exception("a sample could not be cancelled")
        assert isinstance(op.payload, Sample)
        if reason is not None or op.payload.listener is not None:
            self._tell([(op, reason or ServiceError("the service is stopping; ask again."))])

    def _tell(self, results: Sequence[tuple[Op, SampleResult | Exception]]) -> None:
        """Answers samples: those with a listener directly, the others as outcomes."""
        outcomes: list[tuple[Op, Outcome]] = []
        for op, result in results:
            assert isinstance(op.payload, Sample)
            if isinstance(result, SampleResult):
                _count_tokens(op.payload, result)
            if op.payload.listener is not None:
                if isinstance(result, Exception) and not isinstance(result, TinsmithError):
                    result = ServiceError(f"sampling failed: {_words(result)}")
                op.payload.listener(result)
                continue
            try:
                if isinstance(result, Exception):
                    raise result
                outcomes.append((op, _encode_sample(op, result)))
            except Exception as error:  # noqa: BLE001 - a failed sample is an outcome
                outcomes.append((op, _failure(op, error)))
        if outcomes:
            self._finish(outcomes)

    def _give_up(self, ops: Sequence[Op], reason: str) -> None:
        """Ops that were never carried out, and never will be."""
        listening = [op for op in ops if isinstance(op.payload, Sample) and op.payload.listener]
        self._tell([(op, RequestError(reason)) for op in listening])
        outcome = Outcome.failure(reason, "user", ran=False)
        told = [(op, outcome) for op in ops if op not in listening and not op.again]
        if told:
            self._finish(told)

    def _weights_in_use(self) -> set[WeightsId | None]:
        return {_weights(op) for op in self._sampling.values()}


def _count_tokens(sample: Sample, result: SampleResult) -> None:
    sampled = sum(len(sequence.tokens) for sequence in result.sequences)
    metrics.count("tinsmith_tokens_sampled_total", sampled)
    fresh = len(sample.job.prompt) - result.cached_tokens
    metrics.count("tinsmith_tokens_prompted_total", result.cached_tokens, cached="yes")
    metrics.count("tinsmith_tokens_prompted_total", fresh, cached="no")


def _weights(op: Op) -> WeightsId | None:
    assert isinstance(op.payload, Sample)
    return op.payload.job.weights


def _encode_sample(op: Op, result: SampleResult) -> Outcome:
    assert isinstance(op.payload, Sample)
    job, last_n = op.payload.job, op.payload.last_n
    unscored = 1 if last_n is None else max(len(job.prompt) - last_n, 1)  # the first never is
    logprobs, topk, alt = result.prompt_logprobs, result.topk_prompt, result.alt_tokens
    if logprobs is not None:
        logprobs = [None] * unscored + logprobs[unscored:]
    rows = slice(unscored - 1, None)
    scores = proto.WireScores(
        topk and proto.WireTokens(topk.tokens[rows], topk.logprobs[rows], empty=unscored),
        result.target_prompt,
        job.target_layout and (job.target_layout.crow, job.target_layout.col),
        alt and proto.WireTokens(alt.tokens, alt.logprobs),
    )
    sequences = [
        proto.WireSequence(
            sequence.tokens,
            sequence.logprobs,
            sequence.stop_reason,
            sequence.topk and proto.WireTokens(sequence.topk.tokens, sequence.topk.logprobs),
        )
        for sequence in result.sequences
    ]
    payload = proto.encode_sample(sequences, logprobs, result.cached_tokens, scores)
    return Outcome(payload, PROTOBUF)


def _words(error: Exception) -> str:
    text = str(error) or "no message"
    return text if isinstance(error, TinsmithError) else f"{type(error).__name__}: {text}"


def _failure(op: Op, error: Exception, *, ran: bool = True) -> Outcome:
    """What the client is told; only what is not the client's doing is logged, with its traceback."""
    if isinstance(error, (RequestError, ModelError)):
        return Outcome.failure(str(error), "user", ran=ran)
    if isinstance(error, TinsmithError):
        log.error("%s %s failed: %s", op.kind, op.future_id, error)
    else:
        log.error("%s %s failed", op.kind, op.future_id, exc_info=error)
    return Outcome.failure(f"{op.kind} failed: {_words(error)}", "server", ran=ran)
