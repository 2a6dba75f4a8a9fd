"""API keys: made, listed, revoked and checked; only their hashes are kept."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from tinsmith.errors import ConfigError
from tinsmith.service.store.store import Store

PREFIX = "tml-"  # the SDK refuses keys of any other form
LONGEST = 512  # characters of what is looked at as a key
USED_SECONDS = 60.0  # how exactly `last_used_at` is kept
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True)
class Key:
    """A key without its secret."""

    id: int
    name: str
    owner: str
    created_at: float
    last_used_at: float | None = None
    revoked_at: float | None = None


class KeyRing:
    """The keys of one database. Each check is one look-up by hash, so that a key revoked by another
    process is refused at the next request. A key is 32 random bytes: it cannot be guessed from its
    hash, and a slow hash would only cost every request."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._used: dict[int, float] = {}

    def create(self, name: str, owner: str | None = None) -> tuple[Key, str]:
        """A new key and its secret, which cannot be had again."""
        owner = name if owner is None else owner
        for what, given in (("name", name), ("owner", owner)):
            if not _NAME.fullmatch(given):
                raise ConfigError(
                    f"the {what} {given[:80]!r} cannot be used: take 1 to 64 letters, digits and . _ @ -, "
                    "beginning with a letter or digit."
                )
        if any(key.name == name and key.revoked_at is None for key in self.all()):
            raise ConfigError(
                f"there is a key {name!r} already; choose another name, or revoke it first."
            )
        secret = PREFIX + secrets.token_urlsafe(32)
        self._store.write(
            "INSERT INTO keys (name, owner, hash, created_at) VALUES (?, ?, ?, ?)",
            (name, owner, _hash(secret), self._clock()),
        ).result()
        key = self.find(secret)
        assert key is not None
        return key, secret

    def all(self) -> list[Key]:
        """All of them, in the order they were made."""
        return [Key(**dict(row)) for row in self._store.rows(f"{_SELECT} ORDER BY id")]

    def any_live(self) -> bool:
        return any(key.revoked_at is None for key in self.all())

    def revoke(self, key_id: int) -> Key:
        """The key stops working at once; revoking it again changes nothing."""
        self._store.write(
            "UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL",
            (self._clock(), key_id),
        ).result()
        row = self._store.row(f"{_SELECT} WHERE id = ?", (key_id,))
        if row is None:
            raise ConfigError(f"there is no key {key_id}; `tinsmith keys list` shows them.")
        return Key(**dict(row))

    def find(self, secret: str) -> Key | None:
        """The live key with this secret. What is compared is a hash, by an index: how long it takes says
        nothing about a key."""
        if not secret.startswith(PREFIX) or len(secret) > LONGEST:
            return None
        row = self._store.row(f"{_SELECT} WHERE hash = ? AND revoked_at IS NULL", (_hash(secret),))
        return None if row is None else Key(**dict(row))

    def live(self, key_id: int) -> Key | None:
        """The key with this number, unless it was revoked."""
        row = self._store.row(f"{_SELECT} WHERE id = ? AND revoked_at IS NULL", (key_id,))
        return None if row is None else Key(**dict(row))

    def used(self, key: Key) -> None:
        """Notes that a key was used; written once a minute at most, and without waiting for it."""
        now = self._clock()
        if now - self._used.get(key.id, 0.0) >= USED_SECONDS:
            self._used[key.id] = now
            self._store.write("UPDATE keys SET last_used_at = ? WHERE id = ?", (now, key.id))


_SELECT = "SELECT id, name, owner, created_at, last_used_at, revoked_at FROM keys"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
