"""After a restart: models as they were last put on disk, and the requests since then once more."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from tinsmith.errors import ModelError, TinsmithError
from tinsmith.service.engine.backend import Backend, LoraSpec
from tinsmith.service.ops import Op, OpKind, Outcome
from tinsmith.service.requests import payload_of, sample_of
from tinsmith.service.store.checkpoints import CheckpointShelf
from tinsmith.service.store.rows import FutureRow, ModelRow, SessionRow
from tinsmith.service.store.snapshots import SnapshotShelf
from tinsmith.service.store.store import Store
from tinsmith.service.sweeper import STALE_SECONDS
from tinsmith.service.tenants import CALLER, Model, Session, Tenants
from tinsmith.service.wire import types
from tinsmith.service.worker import Worker

log = logging.getLogger(__name__)

# These can be answered when their effect is on disk but their answer is not stored.
_ANSWERED_BY_STATE = (OpKind.CREATE, OpKind.LOAD)


@dataclass(frozen=True)
class Found:
    """What an earlier process left: ops to carry out (`again`: for their effect), and answers."""

    ops: list[Op]
    answers: list[tuple[str, Outcome]]  # by future


class Recovery:
    """Runs before the worker starts."""

    def __init__(
        self,
        store: Store,
        tenants: Tenants,
        shelf: CheckpointShelf,
        snapshots: SnapshotShelf,
        backend: Backend,
        worker: Worker,
    ) -> None:
        self._store = store
        self._tenants = tenants
        self._shelf = shelf
        self._snapshots = snapshots
        self._backend = backend
        self._worker = worker
        self._found = Found([], [])
        self._models: set[str] = set()
        self._copies: set[str] = set()

    def run(self, now: float) -> Found:
        """`now` is the clock's time by which sessions are heard."""
        sessions = self._store.open_sessions()
        alive = max((row.heartbeat_at for row in sessions), default=0.0)  # so was the service
        for session in sessions:
            if alive - session.heartbeat_at > STALE_SECONDS:
                detail = "no heartbeat for a long time"
                self._store.finish_session(session.id, "lost", detail, time.time()).result()
            else:
                self._session(session, now)
        self._snapshots.keep_only(self._models, self._copies)
        over = Outcome.failure("its session is over, or its model was let go.", "user")
        orphans = self._store.orphans()
        self._found.answers.extend((future, over) for future in orphans)
        self._samples(now, set(orphans))
        again = sum(op.again for op in self._found.ops)
        if self._found.ops:
            log.warning(
                "%d requests of an earlier process are carried out, and %d more for their effect on "
                "weights that were not on disk yet",
                len(self._found.ops) - again,
                again,
            )
        return self._found

    def _session(self, session: SessionRow, now: float) -> None:
        self._tenants.add_session(Session(session.id, now, session.owner))
        CALLER.set(session.owner)
        for row in self._store.models_of_session(session.id):
            self._copies.update(self._store.copies(row.id))
            if row.dropped is None:
                self._models.add(row.id)
                self._model(row)

    # models

    def _model(self, row: ModelRow) -> None:
        spec = LoraSpec(**row.spec)
        try:
            model = Model(row.id, row.session_id, spec, self._backend.describe(spec.base_model))
            done = self._newest_state(row)
            self._worker.resume(row.id, spec, done)
        except TinsmithError as error:
            # What is on disk stays: the next start may find what is missing now.
            log.error("the model %s cannot be used: %s", row.id, error)
            self._tenants.unusable[row.id] = str(error)
            return
        self._tenants.add_model(model)
        self._answer_by_state(row, done)
        for request in self._store.journal(row.id, done):
            self._request(request, model)

    def _newest_state(self, row: ModelRow) -> int:
        """The last op in the newest state that can be used; -1: the model is made from its beginning."""
        for seq_id, file in self._snapshots.states(row.id):
            try:
                self._backend.check(file)
            except ModelError as error:
                log.error("%s The one before it is used.", error)
                self._snapshots.set_aside(file)
                continue
            if not self._unanswered(row.id, seq_id):
                return seq_id
            log.error("%s is newer than what is known of its model; the one before is used.", file)
            self._snapshots.set_aside(file)
        if row.kept_seq >= 0:
            raise ModelError(
                "no saved state of it can be read; create a training client from its last checkpoint."
            )
        return -1

    def _unanswered(self, model: str, up_to: int) -> bool:
        rows = self._store.pending_of_model(model, up_to)
        return any(row.kind not in _ANSWERED_BY_STATE for row in rows)

    def _answer_by_state(self, row: ModelRow, done: int) -> None:
        for pending in self._store.pending_of_model(row.id, done):
            answer: dict[str, object] = {"model_id": row.id, "type": "create_model"}
            if pending.payload is not None and pending.kind == OpKind.LOAD:
                path = types.parse(types.LoadWeights, pending.payload).path
                answer = {"model_id": row.id, "path": path}
            self._found.answers.append((pending.id, Outcome.json(answer)))

    def _request(self, row: FutureRow, model: Model) -> None:
        if row.payload is None:  # done for good, refused, or never carried out
            self._worker.skip(model.id, row.seq_id)
            if row.seq_id == 0 and row.state == "failed":
                self._worker.give_up(model.id, "it was not created.")
            return
        kind = OpKind(row.kind)
        again = row.state != "pending"
        try:
            payload = payload_of(kind, row.payload, model, self._shelf)
        except TinsmithError as error:
            if again:
                self._worker.give_up(
                    model.id, f"after a restart it could not be made again: {error}"
                )
            else:
                self._found.answers.append((row.id, Outcome.failure(str(error), "user")))
            self._worker.skip(model.id, row.seq_id)
            return
        self._found.ops.append(Op(row.id, kind, model.id, row.seq_id, payload, again=again))

    # samples

    def _samples(self, now: float, orphans: set[str]) -> None:
        for row in self._store.pending_samples():
            if row.id in orphans:
                continue
            assert row.sampler_id is not None
            assert row.payload is not None
            CALLER.set(self._tenants.sessions[row.sampler_id.partition(":")[0]].owner)
            try:
                sampler = self._tenants.sampler(row.sampler_id, now)
                info = self._backend.describe(sampler.base_model)
                asked = types.parse(types.SampleRequest, row.payload)
                sample = sample_of(asked, sampler, info)
            except TinsmithError as error:
                self._found.answers.append((row.id, Outcome.failure(str(error), "user")))
                continue
            self._found.ops.append(Op(row.id, OpKind.SAMPLE, None, row.seq_id, sample))
