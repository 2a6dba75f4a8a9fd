"""The one thread that calls the engine; exceptions become outcomes, and the thread goes on."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from tinsmith.errors import ModelError, RequestError, TinsmithError
from tinsmith.service.engine.backend import (
    AdamSpec,
    Backend,
    LoraSpec,
    ModelId,
    PassResult,
    SampleResult,
    WeightsId,
)
from tinsmith.service.ops import (
    PROTOBUF,
    Batch,
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
from tinsmith.service.scheduler import Scheduler
from tinsmith.service.store.checkpoints import CheckpointShelf
from tinsmith.service.wire import proto

log = logging.getLogger(__name__)

Finish: TypeAlias = Callable[[Sequence[tuple[Op, Outcome]]], None]
FROZEN_PER_MODEL = 16  # copies that exist in memory only; the longest unused goes first
LOADED = 16  # checkpoints kept ready for sampling; read again when needed


class Worker:
    """Admits samples, runs one training batch at a time, and decodes between its micro-batches."""

    def __init__(self, backend: Backend, shelf: CheckpointShelf, finish: Finish) -> None:
        self._backend = backend
        self._shelf = shelf
        self._finish = finish
        self._scheduler = Scheduler()
        self._changed = (
            threading.Condition()
        )  # guards the scheduler and what is asked of the thread
        self._cancels: list[str] = []
        self._stopping = False
        self._busy = False
        self._thread = threading.Thread(target=self._run, name="tinsmith-worker", daemon=True)
        # Of the thread alone:
        self._training: tuple[Batch, Generator[None]] | None = None
        self._sampling: dict[str, Op] = {}
        self._frozen: dict[ModelId, OrderedDict[WeightsId, None]] = {}
        self._loaded: OrderedDict[WeightsId, None] = OrderedDict()
        self._broken: dict[ModelId, str] = {}

    # any thread

    def start(self) -> None:
        self._thread.start()

    def submit(self, op: Op) -> None:
        with self._changed:
            self._scheduler.submit(op)
            self._changed.notify()

    def cancel(self, op: Op) -> None:
        """An op that waits never runs; a sample that runs is stopped; other ops run to their end."""
        with self._changed:
            waiting = self._scheduler.cancel(op.future_id)
            if not waiting:
                self._cancels.append(op.future_id)
                self._changed.notify()
        if waiting:
            self._finish([(op, _cancelled())])

    def skip(self, model: ModelId, seq_id: int) -> None:
        with self._changed:
            self._scheduler.skip(model, seq_id)
            self._changed.notify()

    def stop(self) -> None:
        """Ends after the training op that runs now; what waits is left."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def busy(self) -> bool:
        with self._changed:
            return self._busy or self._scheduler.waiting

    # the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._stopping or self._cancels or self._active()):
                    self._busy = False
                    self._changed.wait()
                if self._stopping and self._training is None:
                    break
                self._busy = True
                cancels, self._cancels = self._cancels, []
            self._stop_samples(cancels, _cancelled())
            self._turn()
        self._stop_samples(list(self._sampling), None)

    def _active(self) -> bool:
        return self._training is not None or bool(self._sampling) or self._scheduler.waiting

    def _turn(self) -> None:
        """Takes in what is new, then one micro-batch of training and one step of decoding."""
        while not self._stopping and (batch := self._next()) is not None:
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
            return self._scheduler.next()

    # training

    def _train(self, batch: Batch) -> Generator[None]:
        """Carries out a batch; yields between micro-batches so that decoding goes on."""
        for op in batch.ops:
            try:
                outcome = yield from self._carry_out(op)
            except Exception as error:  # noqa: BLE001 - a failed op is an outcome; the thread goes on
                outcome = _failure(op, error)
                if op.kind is OpKind.CREATE and op.model is not None:
                    self._broken[op.model] = outcome.error or ""
            self._finish([(op, outcome)])

    def _carry_out(self, op: Op) -> Generator[None, None, Outcome]:
        model, payload, backend = op.model, op.payload, self._backend
        assert model is not None
        if model in self._broken and not isinstance(payload, Drop):
            raise RequestError(f"the model {model} was not created: {self._broken[model]}")
        match payload:
            case Pass():
                return (yield from self._pass(model, payload))
            case AdamSpec():
                return Outcome.json({"metrics": backend.optim_step(model, payload)})
            case LoraSpec():
                backend.create(model, payload)
                return Outcome.json({"model_id": model, "type": "create_model"})
            case Freeze():
                self._freeze(model, payload.sampler)
                return Outcome.json({"path": None, "sampling_session_id": payload.sampler})
            case Save():
                self._save(model, payload)
                return Outcome.json({"path": payload.path})
            case Load():
                backend.load(model, payload.directory, optimizer=payload.optimizer)
                return Outcome.json({"path": payload.path, "model_id": model})
            case Drop():
                self._drop(model, payload.reason)
                return Outcome.json({})
            case Sample():
                raise AssertionError("samples are admitted, not trained")

    def _pass(self, model: ModelId, request: Pass) -> Generator[None, None, Outcome]:
        for step in self._backend.run_pass(
            model, request.items, request.loss, backward=request.backward
        ):
            if isinstance(step, PassResult):
                payload = proto.encode_forward_backward(step.outputs, step.metrics)
                return Outcome(payload, PROTOBUF)
            yield
        raise RuntimeError("the engine ended a pass without a result")

    def _save(self, model: ModelId, save: Save) -> None:
        with self._shelf.writing(
            save.path,
            base_model=save.base_model,
            spec=dict(save.spec),
            overwrite=save.overwrite,
            ttl_seconds=save.ttl_seconds,
            user_metadata=dict(save.user_metadata),
        ) as directory:
            self._backend.save(model, directory, optimizer=save.optimizer)

    def _freeze(self, model: ModelId, sampler: WeightsId) -> None:
        copies = self._frozen.setdefault(model, OrderedDict())
        in_use = self._weights_in_use()
        for old in [old for old in copies if old not in in_use]:
            if len(copies) < FROZEN_PER_MODEL:
                break
            self._backend.drop_weights(old)
            del copies[old]
        self._backend.freeze(model, sampler)
        copies[sampler] = None

    def _drop(self, model: ModelId, reason: str) -> None:
        """Lets a model and its frozen copies go, with all that still waits for them."""
        copies = self._frozen.pop(model, OrderedDict[WeightsId, None]())
        gone = Outcome.failure(f"the model {model} was let go: {reason}", "user")
        self._stop_samples([i for i, op in self._sampling.items() if _weights(op) in copies], gone)
        for weights in copies:
            self._backend.drop_weights(weights)
        if self._broken.pop(model, None) is None:
            self._backend.drop(model)
        with self._changed:
            left = self._scheduler.forget(model)
        self._finish([(op, gone) for op in left])

    # sampling

    def _admit(self, ops: Sequence[Op]) -> None:
        for op in ops:
            try:
                assert isinstance(op.payload, Sample)
                self._ready(op.payload)
                self._backend.add(op.future_id, op.payload.job)
                self._sampling[op.future_id] = op
            except Exception as error:  # noqa: BLE001 - a refused sample is an outcome
                self._finish([(op, _failure(op, error))])

    def _ready(self, sample: Sample) -> None:
        """Sees to it that a sample's weights are in memory."""
        weights = sample.job.weights
        if weights is None:
            return
        if weights in self._loaded:
            self._loaded.move_to_end(weights)
        elif sample.source is not None:
            in_use = self._weights_in_use()
            for old in [old for old in self._loaded if old not in in_use]:
                if len(self._loaded) < LOADED:
                    break
                self._backend.drop_weights(old)
                del self._loaded[old]
            self._backend.load_weights(weights, sample.job.base_model, sample.source)
            self._loaded[weights] = None
        else:
            copies = next((c for c in self._frozen.values() if weights in c), None)
            if copies is None:
                raise RequestError(
                    f"the sampler {weights} is no longer in memory (the {FROZEN_PER_MODEL} last used "
                    "of a model are kept); use save_weights_for_sampler for weights to keep."
                )
            copies.move_to_end(weights)

    def _decode(self) -> None:
        try:
            finished = self._backend.step()
        except Exception as error:
            log.exception("a decode step failed; %d samples are given up", len(self._sampling))
            broken = Outcome.failure(f"sampling failed: {_words(error)}", "server")
            self._stop_samples(list(self._sampling), broken)
            return
        done: list[tuple[Op, Outcome]] = []
        for item in finished:
            op = self._sampling.pop(item.job_id, None)
            if op is None:
                continue
            try:
                if not isinstance(item.result, SampleResult):
                    raise item.result
                done.append((op, _encode_sample(op, item.result)))
            except Exception as error:  # noqa: BLE001 - a failed sample is an outcome
                done.append((op, _failure(op, error)))
        if done:
            self._finish(done)

    def _stop_samples(self, futures: Sequence[str], outcome: Outcome | None) -> None:
        for future_id in futures:
            op = self._sampling.pop(future_id, None)
            if op is None:
                continue
            try:
                self._backend.cancel(future_id)
            except Exception:
                log.exception("a sample could not be cancelled")
            if outcome is not None:
                self._finish([(op, outcome)])

    def _weights_in_use(self) -> set[WeightsId | None]:
        return {_weights(op) for op in self._sampling.values()}


def _weights(op: Op) -> WeightsId | None:
    assert isinstance(op.payload, Sample)
    return op.payload.job.weights


def _encode_sample(op: Op, result: SampleResult) -> Outcome:
    assert isinstance(op.payload, Sample)
    scores = result.prompt_logprobs
    if scores is not None and op.payload.last_n is not None:
        skipped = max(len(scores) - op.payload.last_n, 0)
        scores = [None] * skipped + list(scores[skipped:])
    sequences = [
        proto.WireSequence(sequence.tokens, sequence.logprobs, sequence.stop_reason)
        for sequence in result.sequences
    ]
    return Outcome(proto.encode_sample(sequences, scores, result.cached_tokens), PROTOBUF)


def _cancelled() -> Outcome:
    return Outcome.failure("cancelled by the client.", "user")


def _words(error: Exception) -> str:
    text = str(error) or "no message"
    return text if isinstance(error, TinsmithError) else f"{type(error).__name__}: {text}"


def _failure(op: Op, error: Exception) -> Outcome:
    """What the client is told; only what is not the client's doing is logged, with its traceback."""
    if isinstance(error, (RequestError, ModelError)):
        return Outcome.failure(str(error), "user")
    if isinstance(error, TinsmithError):
        log.error("%s %s failed: %s", op.kind, op.future_id, error)
    else:
        log.error("%s %s failed", op.kind, op.future_id, exc_info=error)
    return Outcome.failure(f"{op.kind} failed: {_words(error)}", "server")
