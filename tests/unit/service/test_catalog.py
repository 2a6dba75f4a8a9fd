"""The catalog: owners, pages, changes, copies and removals over a real store and a real directory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tinsmith.errors import RequestError
from tinsmith.service.store import catalog as catalogs
from tinsmith.service.store.catalog import Catalog
from tinsmith.service.store.checkpoints import CheckpointShelf, TinkerPath
from tinsmith.service.store.rows import FutureRow, ModelRow, SessionRow
from tinsmith.service.store.session_list import SessionQuery
from tinsmith.service.store.store import Store

SPEC = {"rank": 4}


@dataclass
class World:
    store: Store
    shelf: CheckpointShelf
    catalog: Catalog
    now: float = 1000.0

    def run(self, session: str, owner: str = "ann", project: str | None = None) -> str:
        """A session with one model."""
        row = SessionRow(session, self.now, self.now, owner=owner, project_id=project)
        self.store.add_session(row).result()
        model = f"{session}:train:0"
        self.store.add_model(ModelRow(model, session, "base", SPEC, self.now)).result()
        return model

    def save(self, model: str, name: str = "one", kind: str = "weights", **options) -> str:
        path = f"tinker://{model}/{kind}/{name}"
        with self.shelf.writing(path, base_model="base", spec=SPEC, **options) as directory:
            directory.mkdir()
            (directory / "adapter_config.json").write_text(json.dumps({"at": self.now}))
        self.now += 1
        return path

    def directory(self, path: str) -> Path:
        return self.shelf.directory(TinkerPath.parse(path))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = Store.open(tmp_path / "service.sqlite")

    def clock() -> float:
        return made.now

    shelf = CheckpointShelf(tmp_path / "checkpoints", store, clock)
    made = World(store, shelf, Catalog(store, shelf, clock))
    yield made
    store.close()


def test_the_last_checkpoint_of_each_kind(world: World) -> None:
    model = world.run("s1")
    world.save(model, "one")
    world.save(model, "one", kind="sampler_weights")
    last = world.save(model, "two")
    run = world.catalog.run(model, "ann")
    assert run.last is not None
    assert run.last.path == last
    assert run.last_sampler is not None
    assert run.last_sampler.kind == "sampler_weights"


def test_the_last_request_of_a_run(world: World) -> None:
    model = world.run("s1")
    assert world.catalog.run(model, "ann").model.last_request_at is None
    world.store.add_future(FutureRow("f", "optim_step", 1, 1050.0, model_id=model)).result()
    assert world.catalog.run(model, "ann").model.last_request_at == 1050.0


def test_of_a_foreign_run_only_what_is_public_is_seen(world: World) -> None:
    model = world.run("s1")
    shown, hidden = world.save(model, "shown"), world.save(model, "hidden")
    with pytest.raises(RequestError, match="no training run"):
        world.catalog.checkpoints_of(model, "bob")
    world.catalog.publish(shown, "ann", True).result()
    assert [one.path for one in world.catalog.checkpoints_of(model, "bob")] == [shown]
    run = world.catalog.run(model, "bob", accessible=True)
    assert run.last is not None
    assert run.last.path == shown
    assert world.catalog.runs("bob", limit=9, offset=0).total == 0
    assert world.catalog.runs("bob", limit=9, offset=0, accessible=True).total == 1
    assert world.catalog.find(shown, "bob")[0].path == shown
    for refused in (
        lambda: world.catalog.find(hidden, "bob"),
        lambda: world.catalog.delete(shown, "bob"),
        lambda: world.catalog.set_ttl(shown, "bob", 1),
        lambda: world.catalog.publish(shown, "bob", False),
    ):
        with pytest.raises(RequestError, match="there is no checkpoint") as caught:
            refused()
        assert caught.value.status == 404
        assert "hidden" not in str(caught.value).removeprefix(f"there is no checkpoint {hidden}")


def test_what_is_expired_is_not_shown_even_before_it_is_removed(world: World) -> None:
    model = world.run("s1")
    path = world.save(model, ttl_seconds=10)
    kept = world.save(model, "two")
    world.now += 20
    assert [one.path for one in world.catalog.checkpoints_of(model, "ann")] == [kept]
    with pytest.raises(RequestError):
        world.catalog.find(path, "ann")
    assert world.directory(path).is_dir()
    assert world.catalog.remove_expired(world.now) == 1
    assert not world.directory(path).exists()
    assert world.directory(kept).is_dir()
    events = [row.event for row in world.catalog.audit.between("ann", 0, world.now + 1)]
    assert events == ["checkpoint_expire"]


def test_a_checkpoint_saved_over_in_time_is_not_removed(world: World) -> None:
    path = world.save(world.run("s1"))
    old = world.store.checkpoint(path)
    assert old is not None
    world.save("s1:train:0", overwrite=True)
    world.shelf.remove(old)
    assert world.catalog.find(path, "ann")[1].is_dir()


def test_saving_and_removing_at_once_leave_rows_and_directories_in_step(world: World) -> None:
    path = world.save(world.run("s1"))

    def save() -> None:
        for _ in range(30):
            world.save("s1:train:0", overwrite=True)

    saving = threading.Thread(target=save)
    saving.start()
    while saving.is_alive():
        row = world.store.checkpoint(path)
        if row is not None:
            world.shelf.remove(row)
    saving.join()
    assert (world.store.checkpoint(path) is not None) is world.directory(path).is_dir()


@pytest.mark.parametrize("linked", [True, False])
def test_a_copy_outlives_its_source(world: World, monkeypatch, linked: bool) -> None:
    if not linked:  # a disk without hard links

        def refuse(source: str, target: str) -> None:
            raise PermissionError

        monkeypatch.setattr(catalogs.os, "link", refuse)
    path = world.save(world.run("s1"), user_metadata={"step": "7"})
    file = world.directory(path) / "adapter_config.json"
    text = file.read_text()
    world.catalog.publish(path, "ann", True).result()
    copy = world.catalog.copy(path, "bob", project="p", ttl_seconds=None, key="k")
    again = world.directory(copy) / "adapter_config.json"
    assert again.samefile(file) is linked
    world.catalog.delete(path, "ann")
    assert again.read_text() == text
    found, _ = world.catalog.own(copy, "bob")
    assert (found.user_metadata, found.public) == ({"step": "7"}, False)
    with pytest.raises(RequestError):
        world.catalog.find(copy, "ann")
    run = world.catalog.run(found.model_id, "bob")
    assert run.model.dropped is not None


def test_sums_by_project(world: World) -> None:
    world.save(world.run("s1"))
    for name in ("one", "two"):
        world.save("s1:train:0", name, kind="sampler_weights")
    world.save(world.run("s2", project="p"))
    world.save(world.run("s3", owner="bob", project="p"))
    sums = {project: count for project, count, _ in world.catalog.storage("ann", None)}
    assert sums == {None: 3, "p": 1}
    ((project, count, size),) = world.catalog.storage("ann", "p")
    assert (project, count) == ("p", 1)
    assert size == len(json.dumps({"at": 1003.0}))
    assert [p for p, _, _ in world.catalog.storage("ann", "default")] == [None]


def test_sessions_of_one_moment_are_paged_whole(world: World) -> None:
    names = sorted(f"s{number}" for number in range(7))
    for name in names:
        world.run(name)  # all at the same time
    sessions, seen, after = world.catalog.sessions, [], None
    while page := sessions.search("ann", SessionQuery(after=after), 2):
        seen += [one.session.id for one in page]
        after = page[-1].session.created_at, page[-1].session.id
    assert seen == names
    assert sessions.ids("ann", limit=3, offset=2) == names[2:5]
