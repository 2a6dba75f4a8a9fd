"""Who is being served: sessions, the models they train and the samplers they read from."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tinsmith.errors import RequestError
from tinsmith.service.engine.backend import LoraSpec, ModelId, ModelInfo, WeightsId
from tinsmith.service.store.checkpoints import CheckpointShelf
from tinsmith.service.store.store import Store

# Whose request is being answered. Every look-up by id checks it, so that no route can forget to.
CALLER: ContextVar[str] = ContextVar("tinsmith_caller", default="local")


@dataclass
class Session:
    id: str
    heard_at: float
    owner: str
    finished: str | None = None
    stored: bool = False  # that it is finished
    models: list[ModelId] = field(default_factory=list[ModelId])
    samplers: set[str] = field(default_factory=set[str])


@dataclass(frozen=True)
class Model:
    id: ModelId
    session: str
    spec: LoraSpec
    info: ModelInfo
    refused: set[int] = field(default_factory=set[int])  # numbers of requests that were not taken


@dataclass(frozen=True)
class Sampler:
    """What a sampling session reads: the base model, a checkpoint, or a copy of a model in training."""

    id: str
    session: str
    base_model: str
    weights: WeightsId | None = None
    source: Path | None = None  # where the weights lie, or will lie, on disk
    model_path: str | None = None


class Tenants:
    """Those in use are in memory; of all others the store knows."""

    def __init__(self, store: Store, shelf: CheckpointShelf, copies: Path) -> None:
        self._store = store
        self._shelf = shelf
        self._copies = copies
        self.sessions: dict[str, Session] = {}
        self._models: dict[ModelId, Model] = {}
        self.unusable: dict[ModelId, str] = {}  # of an earlier process, and why
        self._samplers: dict[str, Sampler] = {}

    # sessions

    def add_session(self, session: Session) -> None:
        self.sessions[session.id] = session

    def session(self, session_id: str, now: float) -> Session:
        """A session the caller can use; being asked for counts as a sign of life."""
        session = self.known_session(session_id, now)
        if session.finished is not None:
            raise RequestError(
                f"the session {session_id} is over ({session.finished}); make a new ServiceClient.",
                status=410,
            )
        session.heard_at = now
        return session

    def known_session(self, session_id: str, now: float) -> Session:
        """A session of the caller's, over or not; another owner's is as good as unknown."""
        session = self.sessions.get(session_id)
        if session is None:
            row = self._store.session(session_id)
            if row is not None:
                session = Session(row.id, now, row.owner, row.detail or row.finished)
                self.sessions[row.id] = session
        if session is None or session.owner != CALLER.get():
            raise RequestError(
                f"there is no session {session_id}; make a new ServiceClient.", status=404
            )
        return session

    def check_owner(self, thing: str, now: float, missing: str | None = None) -> None:
        """Ids of models, samplers and futures begin with their session's. What is another's is refused in
        the words for what does not exist."""
        try:
            self.known_session(thing.partition(":")[0], now)
        except RequestError as error:
            raise RequestError(missing or f"there is no {thing!r}.", status=404) from error

    def end_session(self, session: Session, reason: str) -> tuple[list[ModelId], set[str]]:
        """Forgets what belongs to a session; its models and samplers, for the caller to let go."""
        session.finished = reason
        for model in session.models:
            self._models.pop(model, None)
            self.unusable.pop(model, None)
        for sampler in session.samplers:
            self._samplers.pop(sampler, None)
        models, samplers = session.models, session.samplers
        session.models, session.samplers = [], set()
        return models, samplers

    def forget_ended(self) -> None:
        """The store knows of sessions that are over."""
        for session in [one for one in self.sessions.values() if one.stored]:
            del self.sessions[session.id]

    # models

    def add_model(self, model: Model) -> None:
        self._models[model.id] = model
        self.sessions[model.session].models.append(model.id)

    def drop_model(self, model: Model) -> None:
        self._models.pop(model.id, None)
        self.sessions[model.session].models.remove(model.id)

    def live_model(self, model_id: ModelId) -> Model | None:
        return self._models.get(model_id)

    def model(self, model_id: ModelId, now: float) -> Model:
        missing = f"there is no model {model_id}; create one with create_lora_training_client."
        self.check_owner(model_id, now, missing)
        model = self._models.get(model_id)
        if model is not None:
            self.session(model.session, now)
            return model
        row = self._store.model(model_id)
        if row is None:
            raise RequestError(missing, status=404)
        self.session(row.session_id, now)
        self.check_usable(model_id)
        raise RequestError(
            f"the model {model_id} was let go ({row.dropped or 'it is not in memory'}); "
            f"{self._last_checkpoint(model_id)}.",
            status=404,
        )

    def check_usable(self, model_id: ModelId) -> None:
        """Refuses what is asked of a model that could not be made again after a restart."""
        if (reason := self.unusable.get(model_id)) is not None:
            raise RequestError(
                f"the model {model_id} cannot be used: {reason} Its files are kept; "
                f"{self._last_checkpoint(model_id)}.",
                status=404,
            )

    def _last_checkpoint(self, model_id: ModelId) -> str:
        saved = [one.path for one in self._store.checkpoints(model_id) if one.kind == "weights"]
        return f"its last checkpoint is {saved[0]}" if saved else "nothing of it was saved by name"

    # samplers

    def add_sampler(self, sampler: Sampler) -> None:
        self._samplers[sampler.id] = sampler
        self.sessions[sampler.session].samplers.add(sampler.id)

    def has_sampler(self, sampler_id: str) -> bool:
        return sampler_id in self._samplers

    def sampler(self, sampler_id: str, now: float) -> Sampler:
        missing = f"there is no sampler {sampler_id}; make one with create_sampling_client."
        self.check_owner(sampler_id, now, missing)
        sampler = self._samplers.get(sampler_id)
        if sampler is not None:
            self.session(sampler.session, now)
            return sampler
        row = self._store.sampler(sampler_id)
        if row is None:
            raise RequestError(missing, status=404)
        self.session(row.session_id, now)
        if row.model_id is not None:
            sampler = self.copy_sampler(row.id, row.session_id, row.base_model)
        else:
            sampler = self.make_sampler(row.id, row.session_id, row.base_model, row.model_path)
        self.add_sampler(sampler)
        return sampler

    def make_sampler(
        self, sampler_id: str, session: str, base_model: str, model_path: str | None
    ) -> Sampler:
        """A sampler of a base model or of a saved checkpoint."""
        if model_path is None:
            return Sampler(sampler_id, session, base_model)
        checkpoint, directory = self._shelf.find(model_path)
        # A name may be saved over: weights that are in memory are those of one moment.
        weights = f"{model_path}@{checkpoint.created_at}"
        return Sampler(sampler_id, session, checkpoint.base_model, weights, directory, model_path)

    def copy_sampler(self, sampler_id: str, session: str, base_model: str) -> Sampler:
        """A sampler of a copy of a model in training, which the worker makes or has made."""
        return Sampler(sampler_id, session, base_model, sampler_id, self._copies / sampler_id)


def spec_fields(spec: LoraSpec) -> dict[str, Any]:
    """A LoRA's settings for the store."""
    return asdict(spec)
