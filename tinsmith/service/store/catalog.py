"""What people see of the store: training runs and checkpoints, listed, found, changed and removed."""

from __future__ import annotations

import difflib
import os
import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from tinsmith.errors import RequestError
from tinsmith.service.store.audit import Audit
from tinsmith.service.store.checkpoints import CheckpointShelf, TinkerPath
from tinsmith.service.store.rows import Checkpoint, ModelRow, SessionRow
from tinsmith.service.store.session_list import DEFAULT_PROJECT, SessionList
from tinsmith.service.store.store import Store, checkpoint_row, model_row

T = TypeVar("T")
Values: TypeAlias = tuple[Any, ...]

MODELS = "models m JOIN sessions s ON s.id = m.session_id"
CHECKPOINTS = f"checkpoints c JOIN models m ON m.id = c.model_id {MODELS.removeprefix('models m ')}"
COPY = "a copy cannot be trained on"
_NAMESPACE = uuid.UUID("6e1dbb37-3f4e-4a57-9d4f-3f2f5a0f6d11")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some of `total` things."""

    items: list[T]
    total: int


@dataclass(frozen=True)
class Run:
    """A model, past or present, with what was last saved of it."""

    model: ModelRow
    owner: str
    last: Checkpoint | None
    last_sampler: Checkpoint | None


class Catalog:
    """Everyone sees what is their own and what others made public; the rest is as good as unknown."""

    def __init__(
        self, store: Store, shelf: CheckpointShelf, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._shelf = shelf
        self._clock = clock
        self.audit = Audit(store, clock)
        self.sessions = SessionList(store)

    # training runs

    def runs(
        self,
        owner: str,
        *,
        limit: int,
        offset: int,
        accessible: bool = False,
        project: str | None = None,
    ) -> Page[Run]:
        """Newest first."""
        where, values = self._visible_runs(owner, accessible)
        if project is not None:
            where += " AND coalesce(s.project_id, ?) = ?"
            values = (*values, DEFAULT_PROJECT, project)
        (total,) = self._store.rows(f"SELECT count(*) FROM {MODELS} WHERE {where}", values)[0]
        rows = self._store.rows(
            f"SELECT m.* FROM {MODELS} WHERE {where} ORDER BY m.created_at DESC, m.id LIMIT ? OFFSET ?",
            (*values, limit, offset),
        )
        return Page(self._described([model_row(row) for row in rows], owner), total)

    def run(self, model_id: str, owner: str, *, accessible: bool = False) -> Run:
        where, values = self._visible_runs(owner, accessible)
        rows = self._store.rows(
            f"SELECT m.* FROM {MODELS} WHERE m.id = ? AND {where}", (model_id, *values)
        )
        if not rows:
            raise RequestError(
                f"there is no training run {model_id}; list them with list_training_runs().",
                status=404,
            )
        return self._described([model_row(rows[0])], owner)[0]

    def _visible_runs(self, owner: str, accessible: bool) -> tuple[str, Values]:
        if not accessible:
            return "s.owner = ?", (owner,)
        shared = "EXISTS (SELECT 1 FROM checkpoints c WHERE c.model_id = m.id AND c.public)"
        return f"(s.owner = ? OR {shared})", (owner,)

    def _described(self, models: list[ModelRow], owner: str) -> list[Run]:
        if not models:
            return []
        ids = tuple(model.id for model in models)
        marks = ", ".join("?" * len(ids))
        owners = {
            row["id"]: row["owner"]
            for row in self._store.rows(
                f"SELECT m.id, s.owner FROM {MODELS} WHERE m.id IN ({marks})", ids
            )
        }
        where, values = self._live(owner)
        newest = self._store.rows(
            "SELECT * FROM checkpoints WHERE path IN (SELECT path FROM (SELECT c.path,"
            f" max(c.created_at) FROM {CHECKPOINTS} WHERE {where} AND c.model_id IN ({marks})"
            " GROUP BY c.model_id, c.kind))",
            (*values, *ids),
        )
        last = {(row["model_id"], row["kind"]): checkpoint_row(row) for row in newest}
        return [
            Run(
                model,
                owners[model.id],
                last.get((model.id, "weights")),
                last.get((model.id, "sampler_weights")),
            )
            for model in models
        ]

    # checkpoints

    def _live(self, owner: str, *, public: bool = True) -> tuple[str, Values]:
        """Those the owner may read (or, without `public`, change) and whose time is not over."""
        whose = "(s.owner = ? OR c.public)" if public else "s.owner = ?"
        return f"{whose} AND (c.expires_at IS NULL OR c.expires_at > ?)", (owner, self._clock())

    def checkpoints(self, owner: str, *, limit: int, offset: int) -> Page[Checkpoint]:
        """Of all runs of an owner, newest first."""
        where, values = self._live(owner, public=False)
        (total,) = self._store.rows(f"SELECT count(*) FROM {CHECKPOINTS} WHERE {where}", values)[0]
        rows = self._store.rows(
            f"SELECT c.* FROM {CHECKPOINTS} WHERE {where}"
            " ORDER BY c.created_at DESC, c.path LIMIT ? OFFSET ?",
            (*values, limit, offset),
        )
        return Page([checkpoint_row(row) for row in rows], total)

    def checkpoints_of(self, model_id: str, owner: str) -> list[Checkpoint]:
        """Of one run, newest first; of another owner's only the public ones."""
        self.run(model_id, owner, accessible=True)
        where, values = self._live(owner)
        rows = self._store.rows(
            f"SELECT c.* FROM {CHECKPOINTS} WHERE c.model_id = ? AND {where}"
            " ORDER BY c.created_at DESC, c.path",
            (model_id, *values),
        )
        return [checkpoint_row(row) for row in rows]

    def find(self, text: str, owner: str) -> tuple[Checkpoint, Path]:
        """A checkpoint the owner may read, and its directory."""
        return self._find(text, owner, *self._live(owner))

    def own(self, text: str, owner: str) -> tuple[Checkpoint, Path]:
        """A checkpoint the owner may change, and its directory."""
        return self._find(text, owner, *self._live(owner, public=False))

    def _find(self, text: str, owner: str, where: str, values: Values) -> tuple[Checkpoint, Path]:
        path = TinkerPath.parse(text)
        directory = self._shelf.directory(path)
        rows = self._store.rows(
            f"SELECT c.* FROM {CHECKPOINTS} WHERE c.path = ? AND {where}", (str(path), *values)
        )
        if rows and directory.is_dir():
            return checkpoint_row(rows[0]), directory
        raise RequestError(f"there is no checkpoint {text}. {self._near(text, owner)}", status=404)

    def _near(self, text: str, owner: str) -> str:
        known = [one.path for one in self.checkpoints(owner, limit=200, offset=0).items]
        if not known:
            return "Nothing was saved yet."
        near = difflib.get_close_matches(text, known, n=3, cutoff=0.0)
        more = len(known) - len(near)
        return f"There is {', '.join(near)}" + (f" and {more} more." if more else ".")

    # changes

    def publish(self, text: str, owner: str, public: bool) -> Future[None]:
        """Lets every owner read a checkpoint, or takes that back; doing so again changes nothing."""
        checkpoint, _ = self.own(text, owner)
        self.audit.add(owner, "checkpoint_publish" if public else "checkpoint_unpublish", text)
        return self._store.write(
            "UPDATE checkpoints SET public = ? WHERE path = ?", (public, checkpoint.path)
        )

    def set_ttl(self, text: str, owner: str, seconds: int | None) -> Future[None]:
        """A checkpoint goes `seconds` from now, or never."""
        checkpoint, _ = self.own(text, owner)
        self.audit.add(owner, "checkpoint_set_ttl", text)
        expires = None if seconds is None else self._clock() + seconds
        return self._store.write(
            "UPDATE checkpoints SET expires_at = ? WHERE path = ?", (expires, checkpoint.path)
        )

    def delete(self, text: str, owner: str) -> None:
        """Removes a checkpoint and its files. Samplers that hold it in memory go on."""
        checkpoint, _ = self.own(text, owner)
        self._shelf.remove(checkpoint)
        self.audit.add(owner, "checkpoint_delete", checkpoint.path).result()

    def remove_expired(self, now: float) -> int:
        """Removes the checkpoints whose time is over; how many there were."""
        rows = self._store.rows(
            f"SELECT c.path, s.owner FROM {CHECKPOINTS} WHERE c.expires_at <= ?", (now,)
        )
        for row in rows:
            checkpoint = self._store.checkpoint(row["path"])
            if checkpoint is not None:
                self._shelf.remove(checkpoint)
                self.audit.add(row["owner"], "checkpoint_expire", checkpoint.path).result()
        return len(rows)

    def copy(
        self,
        text: str,
        owner: str,
        *,
        ttl_seconds: int | None,
        project: str | None = None,
        key: str = "",
        place: tuple[str, int] | None = None,
    ) -> str:
        """A checkpoint as the only one of a run that cannot be trained; its path.

        The run is in a session of its own, made for `project` (the same `key` again gives the same
        one), or at `place`: a session of the owner's and a number in it. Files are shared with the
        source where the disk can.
        """
        source, directory = self.find(text, owner)
        if place is None:
            place = self._session_for_copy(source, owner, project, key), 0
        session = self.sessions.get(place[0], owner).id
        target = TinkerPath(f"{session}:train:{place[1]}", source.kind, source.name)
        self._add_run_for_copy(source, session, target.model_id)
        if self._store.checkpoint(str(target)) is not None:
            return str(target)
        with self._shelf.writing(
            str(target),
            base_model=source.base_model,
            spec=source.spec,
            ttl_seconds=ttl_seconds,
            user_metadata=source.user_metadata,
        ) as staged:
            shutil.copytree(directory, staged, copy_function=_link)
        self.audit.add(owner, "checkpoint_copy", str(target))
        return str(target)

    def _session_for_copy(
        self, source: Checkpoint, owner: str, project: str | None, key: str
    ) -> str:
        name = str(uuid.uuid5(_NAMESPACE, f"{owner}\n{source.path}\n{key or uuid.uuid4()}"))
        if self._store.session(name) is None:
            now = self._clock()
            row = SessionRow(name, now, now, project_id=project, display_name="copy", owner=owner)
            self._store.add_session(row)
            note = f"holds a copy of {source.path}"
            self._store.finish_session(name, "success", note, now).result()
        return name

    def _add_run_for_copy(self, source: Checkpoint, session: str, model_id: str) -> None:
        origin = {"copied_from": source.path}
        known = self._store.model(model_id)
        if known is None:
            row = ModelRow(model_id, session, source.base_model, source.spec, self._clock(), origin)
            self._store.add_model(row)
            self._store.drop_model(model_id, COPY).result()
        elif known.user_metadata != origin:
            raise RequestError(f"{model_id} is there already; give another model_seq_id.")

    # sums

    def storage(self, owner: str, project: str | None) -> list[tuple[str | None, int, int]]:
        """How many checkpoints an owner has and how many bytes they take, by project."""
        where, values = self._live(owner, public=False)
        if project is not None:
            where += " AND coalesce(s.project_id, ?) = ?"
            values = (*values, DEFAULT_PROJECT, project)
        rows = self._store.rows(
            f"SELECT s.project_id, count(*), sum(c.size_bytes) FROM {CHECKPOINTS}"
            f" WHERE {where} GROUP BY s.project_id ORDER BY s.project_id",
            values,
        )
        return [(row[0], row[1], row[2]) for row in rows]


def _link(source: str, target: str) -> None:
    """A checkpoint's files never change, so two directories may share them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
