"""Who is being served: sessions, the models they train and the samplers they read from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tinsmith.errors import RequestError
from tinsmith.service.engine.backend import LoraSpec, ModelId, ModelInfo, WeightsId
from tinsmith.service.store.checkpoints import CheckpointShelf
from tinsmith.service.store.store import Store

RESTARTED = (
    "the service was restarted and its memory is gone; "
    "go on from the last saved checkpoint with create_training_client_from_state_with_optimizer"
)


@dataclass
class Session:
    id: str
    heard_at: float
    finished: str | None = None
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
    """What a sampling session reads: the base model, a checkpoint on disk, or a copy in memory."""

    id: str
    session: str
    base_model: str
    weights: WeightsId | None = None
    source: Path | None = None
    model_path: str | None = None


class Tenants:
    """Those of this process are in memory; of earlier ones the store knows."""

    def __init__(self, store: Store, shelf: CheckpointShelf) -> None:
        self._store = store
        self._shelf = shelf
        self.sessions: dict[str, Session] = {}
        self._models: dict[ModelId, Model] = {}
        self._samplers: dict[str, Sampler] = {}

    # sessions

    def add_session(self, session: Session) -> None:
        self.sessions[session.id] = session

    def session(self, session_id: str, now: float) -> Session:
        """A session that can be used; being asked for counts as a sign of life."""
        session = self.sessions.get(session_id)
        if session is None:
            row = self._store.session(session_id)
            if row is None:
                raise RequestError(
                    f"there is no session {session_id}; make a new ServiceClient.", status=404
                )
            session = Session(row.id, now, row.finished)
            self.sessions[row.id] = session
        if session.finished is not None:
            raise RequestError(
                f"the session {session_id} is over ({session.finished}); make a new ServiceClient.",
                status=410,
            )
        session.heard_at = now
        return session

    def end_session(self, session: Session, reason: str) -> tuple[list[ModelId], set[str]]:
        """Forgets what belongs to a session; its models and samplers, for the caller to let go."""
        session.finished = reason
        for model in session.models:
            self._models.pop(model, None)
        for sampler in session.samplers:
            self._samplers.pop(sampler, None)
        models, samplers = session.models, session.samplers
        session.models, session.samplers = [], set()
        return models, samplers

    # models

    def add_model(self, model: Model) -> None:
        self._models[model.id] = model
        self.sessions[model.session].models.append(model.id)

    def live_model(self, model_id: ModelId) -> Model | None:
        return self._models.get(model_id)

    def model(self, model_id: ModelId, now: float) -> Model:
        model = self._models.get(model_id)
        if model is not None:
            self.session(model.session, now)
            return model
        row = self._store.model(model_id)
        if row is None:
            raise RequestError(f"there is no model {model_id}. {self._there_is()}", status=404)
        self.session(row.session_id, now)
        saved = [one.path for one in self._store.checkpoints(model_id) if one.kind == "weights"]
        last = f" ({saved[0]})" if saved else " (of this model none was saved)"
        raise RequestError(f"the model {model_id} is gone: {RESTARTED}{last}.", status=404)

    def _there_is(self) -> str:
        known = sorted(self._models)
        return f"There is {', '.join(known[:5])}." if known else "No model was created yet."

    # samplers

    def add_sampler(self, sampler: Sampler) -> None:
        self._samplers[sampler.id] = sampler
        self.sessions[sampler.session].samplers.add(sampler.id)

    def has_sampler(self, sampler_id: str) -> bool:
        return sampler_id in self._samplers

    def sampler(self, sampler_id: str, now: float) -> Sampler:
        sampler = self._samplers.get(sampler_id)
        if sampler is not None:
            self.session(sampler.session, now)
            return sampler
        row = self._store.sampler(sampler_id)
        if row is None:
            raise RequestError(
                f"there is no sampler {sampler_id}; make one with create_sampling_client.",
                status=404,
            )
        self.session(row.session_id, now)
        if row.model_id is not None:
            raise RequestError(
                f"the sampler {sampler_id} is gone: the service was restarted, and this copy of "
                f"{row.model_id} was in memory only; make a new one.",
                status=404,
            )
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


def spec_fields(spec: LoraSpec) -> dict[str, Any]:
    """A LoRA's settings for the store."""
    return asdict(spec)
