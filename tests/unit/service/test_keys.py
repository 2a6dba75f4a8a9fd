"""API keys: only hashes on disk, revoked at once by whichever process."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinsmith.errors import ConfigError
from tinsmith.service.access import Tokens, credential
from tinsmith.service.store.keys import USED_SECONDS, KeyRing
from tinsmith.service.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "service.sqlite")
    yield store
    store.close()


def test_a_key_is_found_by_its_secret_alone(store: Store, tmp_path: Path) -> None:
    ring = KeyRing(store)
    key, secret = ring.create("laptop", "ann")
    assert secret.startswith("tml-")
    assert len(secret) == 4 + 43
    assert ring.find(secret) == key
    assert (key.name, key.owner) == ("laptop", "ann")
    for wrong in ("", "tml-", secret[:-1], secret + "x", secret.upper(), "tml-" + "x" * 10**6):
        assert ring.find(wrong) is None
    for file in tmp_path.iterdir():
        assert secret[4:].encode() not in file.read_bytes(), "the secret must not be on disk"


def test_keys_are_listed_without_their_secrets(store: Store) -> None:
    ring = KeyRing(store)
    (first, _), (second, _) = ring.create("a"), ring.create("b", "a")
    assert ring.all() == [first, second]
    assert (first.owner, second.owner) == ("a", "a")


def test_another_process_revokes_at_once(store: Store, tmp_path: Path) -> None:
    ring = KeyRing(store)
    key, secret = ring.create("a")
    elsewhere = sqlite3.connect(tmp_path / "service.sqlite")
    with elsewhere:
        elsewhere.execute("UPDATE keys SET revoked_at = 1.0 WHERE id = ?", (key.id,))
    elsewhere.close()
    assert ring.find(secret) is None
    assert ring.live(key.id) is None
    assert not ring.any_live()


def test_revoking_is_for_good(store: Store) -> None:
    now = [100.0]
    ring = KeyRing(store, lambda: now[0])
    key, secret = ring.create("a")
    assert ring.revoke(key.id).revoked_at == 100.0
    now[0] = 200.0
    assert ring.revoke(key.id).revoked_at == 100.0, "the first time stands"
    assert ring.find(secret) is None
    again, other = ring.create("a")
    assert again.id != key.id
    assert ring.find(other) == again
    with pytest.raises(ConfigError, match="no key 99"):
        ring.revoke(99)


def test_names_are_checked_and_free(store: Store) -> None:
    ring = KeyRing(store)
    ring.create("ann@lab.org")
    with pytest.raises(ConfigError, match="already"):
        ring.create("ann@lab.org")
    for wrong in ("", "a b", "-a", "x" * 65, "a\n", "é"):
        with pytest.raises(ConfigError, match="cannot be used"):
            ring.create(wrong)
        with pytest.raises(ConfigError, match="owner"):
            ring.create("fine", wrong)


def test_use_is_noted_now_and_then(store: Store) -> None:
    now = [1000.0]
    ring = KeyRing(store, lambda: now[0])
    key, _ = ring.create("a")

    def last() -> float | None:
        store.write("SELECT 1", ()).result()  # after all that was asked before
        return ring.all()[0].last_used_at

    assert last() is None
    ring.used(key)
    assert last() == 1000.0
    now[0] += USED_SECONDS / 2
    ring.used(key)
    assert last() == 1000.0
    now[0] += USED_SECONDS
    ring.used(key)
    assert last() == now[0]


def test_tokens_stand_for_live_keys(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing(store)
    key, _ = ring.create("a", "ann")
    tokens = Tokens(ring)
    token = tokens.issue(key)
    assert token.startswith("eyJ")
    assert token.count(".") == 2
    assert tokens.find(token) == key
    assert Tokens(ring).find(token) is None, "another process signs otherwise"
    head, claims, signature = token.split(".")
    for forged in (f"{head}.{claims}.", f"{head}.{claims}x.{signature}", "eyJ", "eyJ..", "eyJ.é.é"):
        assert tokens.find(forged) is None
    monkeypatch.setattr("tinsmith.service.access.time.time", lambda: 10**10)
    assert tokens.find(token) is None, "it is too old"
    monkeypatch.undo()
    ring.revoke(key.id)
    assert tokens.find(token) is None


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([(b"x-api-key", b"tml-a")], "tml-a"),
        ([(b"authorization", b"Bearer tml-b")], "tml-b"),
        ([(b"authorization", b"bearer tml-b"), (b"x-api-key", b" tml-a ")], "tml-a"),
        ([(b"authorization", b"Basic tml-b")], None),
        ([(b"authorization", b"Bearer ")], None),
        ([(b"x-api-key", b"")], None),
        ([], None),
    ],
)
def test_where_keys_are_looked_for(headers: list[tuple[bytes, bytes]], found: str | None) -> None:
    assert credential(headers) == found
