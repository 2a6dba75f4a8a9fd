"""Rows survive, writes are grouped, a bad one does not take its neighbours along."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

import pytest

from tinsmith.errors import RequestError, StorageError
from tinsmith.service.store import schema
from tinsmith.service.store.checkpoints import CheckpointShelf, TinkerPath, check_name
from tinsmith.service.store.rows import FutureRow, ModelRow, ResultRow, SamplerRow, SessionRow
from tinsmith.service.store.store import Store

MODEL = "s1:train:0"
SPEC = {"rank": 8}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "service.sqlite")
    yield store
    store.close()


def future(seq_id: int, **owner: str) -> FutureRow:
    owner = owner or {"model_id": MODEL}
    return FutureRow(f"{next(iter(owner.values()))}/{seq_id}", "optim_step", seq_id, 1.0, **owner)


def test_rows_come_back_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "service.sqlite"
    store = Store.open(path)
    session = SessionRow("s1", 1.0, 2.0, ["tag"], {"a": [1]}, "0.36", None, "name")
    model = ModelRow(MODEL, "s1", "base", SPEC, 3.0, {"b": 1})
    sampler = SamplerRow("s1:sample:0", "s1", "base", 4.0, "tinker://x")
    store.add_session(session)
    store.add_model(model)
    store.add_sampler(sampler)
    store.finish_session("s1", "success", None, 5.0)
    store.finish_session("s1", "errored", "too late", 6.0)
    store.close()
    again = Store.open(path)
    found = again.session("s1")
    assert found is not None
    assert (found.finished, found.detail, found.finished_at) == ("success", None, 5.0)
    assert found.user_metadata == {"a": [1]}
    again_model = again.model(MODEL)
    assert again_model is not None
    assert replace(again_model, dropped=None) == model
    assert again.sampler("s1:sample:0") == sampler
    assert again.model("other") is None
    assert [again.join_sampler("s1:sample:0").result() for _ in range(2)] == [1, 2]
    assert again.join_sampler("none").result() is None
    again.close()


def test_a_number_is_taken_once_per_owner(store: Store) -> None:
    assert store.add_future(future(1)).result() is True
    assert store.add_future(future(1)).result() is False
    assert store.add_future(future(1, sampler_id="s")).result() is True
    assert store.add_future(future(2)).result() is True


def test_results(store: Store) -> None:
    for n in range(3):
        store.add_future(future(n, sampler_id="s"))
    store.finish_futures(
        [ResultRow("s/0", b"r", "t", 5.0), ResultRow("s/1", b"e", "t", 6.0, "bad")]
    ).result()
    assert [row.id for row in store.pending_samples()] == ["s/2"]
    store.finish_futures([ResultRow("s/2", b"late", "t", 7.0)]).result()
    assert store.result("s/0") == ResultRow("s/0", b"r", "t", 5.0)
    assert [row.result for row in store.results_of_sampler("s", 0, 10)] == [b"r", b"e", b"late"]
    assert store.results_of_sampler("s", 3, 2**63) == []
    store.prune_futures(5.5).result()
    assert store.result("s/0") is None
    store.delete_futures(["s/1"]).result()
    assert store.result("s/1") is None


def test_requests_are_kept_until_their_effect_is_on_disk(store: Store) -> None:
    store.add_session(SessionRow("s1", 1.0, 1.0))
    store.add_model(ModelRow(MODEL, "s1", "base", SPEC, 3.0))
    for n in range(5):
        store.add_future(replace(future(n), payload=b"request"))
    for n in range(4):
        store.finish_futures([ResultRow(f"{MODEL}/{n}", b"r", "t", 5.0, keep_payload=n != 1)])
    store.keep_model(MODEL, 0).result()
    kept = [(row.seq_id, row.payload, row.state) for row in store.journal(MODEL, -1)]
    assert kept == [
        (0, None, "finished"),
        (1, None, "finished"),
        (2, b"request", "finished"),
        (3, b"request", "finished"),
        (4, b"request", "pending"),
    ]
    store.prune_futures(100.0).result()
    assert [row.seq_id for row in store.journal(MODEL, -1)] == [1, 2, 3, 4]
    assert [row.seq_id for row in store.pending_of_model(MODEL, 9)] == [4]
    assert store.orphans() == []
    store.drop_model(MODEL, "unloaded").result()
    assert store.orphans() == [f"{MODEL}/4"]
    store.prune_futures(100.0).result()
    assert [row.seq_id for row in store.journal(MODEL, -1)] == [4]


def test_the_end_of_a_session_lets_its_requests_go(store: Store) -> None:
    store.add_session(SessionRow("s1", 1.0, 1.0))
    store.add_model(ModelRow(MODEL, "s1", "base", SPEC, 3.0))
    store.add_future(replace(future(0), payload=b"request"))
    store.finish_futures([ResultRow(f"{MODEL}/0", b"r", "t", 5.0, keep_payload=True)])
    store.finish_session("s1", "success", None, 6.0).result()
    assert [row.payload for row in store.journal(MODEL, -1)] == [None]
    model = store.model(MODEL)
    assert model is not None
    assert "success" in (model.dropped or "")
    store.prune_futures(100.0).result()
    assert store.journal(MODEL, -1) == []


def test_one_bad_write_fails_alone(store: Store) -> None:
    bad = FutureRow("x", "k", 1, 1.0)  # owned by nobody, which the table refuses
    session = SessionRow("s", 1.0, 1.0)
    many = [store.add_session(session)] + [store.add_future(future(n)) for n in range(200)]
    failing = store.add_session(session)  # the same id again
    more = [store.add_future(future(n, sampler_id="s")) for n in range(200)]
    wait([*many, failing, *more])
    assert isinstance(failing.exception(), StorageError)
    assert all(one.exception() is None for one in [*many, *more])
    assert store.add_future(bad).result() is False


def test_a_file_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "service.sqlite"
    path.write_text("this is no database, but long enough to be taken for one" * 20)
    with pytest.raises(StorageError, match="cannot be used"):
        Store.open(path)


def test_migrations_run_once(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.sqlite")
    schema.migrate(connection)
    schema.migrate(connection)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)


@pytest.mark.parametrize("text", ["000020", "final", "a.b-c_d", "x" * 128])
def test_paths_go_there_and_back(text: str) -> None:
    path = TinkerPath(MODEL, "weights", text)
    assert TinkerPath.parse(str(path)) == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "weights",
        f"{MODEL}/weights/a",
        f"tinker://{MODEL}/weights",
        f"tinker://{MODEL}/weights/a/b",
        f"tinker://{MODEL}/weights/..",
        f"tinker://{MODEL}/weights/.a",
        f"tinker://{MODEL}/other/a",
        f"tinker://{MODEL}/weights/",
        "tinker://../weights/a",
        "tinker://..:train:0/weights/a",
        f"tinker://{MODEL}/weights/a%2fb",
        f"tinker://{MODEL}/weights/a\n",
    ],
)
def test_bad_paths(text: str) -> None:
    with pytest.raises(RequestError):
        TinkerPath.parse(text)


def test_names() -> None:
    assert check_name("ok") == "ok"
    for name in ("", ".", "..", "a/b", "a b", "ä", "x" * 129, "a\n", "\0"):
        with pytest.raises(RequestError):
            check_name(name)


def test_checkpoints_are_whole_or_not_there(store: Store, tmp_path: Path) -> None:
    shelf = CheckpointShelf(tmp_path / "checkpoints", store, clock=lambda: 100.0)
    path = str(TinkerPath(MODEL, "weights", "one"))

    def run_out_of_space() -> None:
        with shelf.writing(path, base_model="b", spec=SPEC) as directory:
            directory.mkdir()
            raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space"):
        run_out_of_space()
    with pytest.raises(RequestError, match="Nothing was saved"):
        shelf.find(path)
    assert not list((tmp_path / "checkpoints").rglob("*.*"))

    for content in ("first", "second"):
        with shelf.writing(
            path, base_model="b", spec=SPEC, overwrite=True, ttl_seconds=60
        ) as directory:
            directory.mkdir()
            (directory / "file").write_text(content)
        row, found = shelf.find(path)
        assert (found / "file").read_text() == content
    assert (row.size_bytes, row.expires_at) == (6, 160.0)
    assert [one.name for one in found.parent.iterdir()] == ["one"]
    with (
        pytest.raises(RequestError, match="exists already"),
        shelf.writing(path, base_model="b", spec=SPEC),
    ):
        pass
    with pytest.raises(RequestError, match=path) as caught:
        shelf.find(path.replace("one", "two"))
    assert caught.value.status == 404


def test_what_a_crash_left_is_swept(store: Store, tmp_path: Path) -> None:
    left = tmp_path / "checkpoints" / MODEL / "weights" / ".incoming-1"
    left.mkdir(parents=True)
    CheckpointShelf(tmp_path / "checkpoints", store)
    assert not left.exists()
