"""Who may ask, and as whom: the key of a request becomes its owner."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from tinsmith.service import logs, metrics
from tinsmith.service.routes.auth import KEY, LOCAL
from tinsmith.service.routes.download import PATH as LINKS
from tinsmith.service.routes.http import PREFIX, answer
from tinsmith.service.store.keys import LONGEST, Key, KeyRing
from tinsmith.service.tenants import CALLER

HEALTH = f"{PREFIX}/healthz"
TOKEN_SECONDS = 3600.0
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_JWT_HEAD = b'{"alg":"HS256","typ":"JWT"}'


class Tokens:
    """Short-lived stand-ins for keys, as `auth/token` gives them: JWTs signed by this process."""

    def __init__(self, keys: KeyRing | None) -> None:
        self._keys = keys
        self._secret = secrets.token_bytes(32)

    def issue(self, key: Key | None) -> str:
        owner = key.owner if key else LOCAL
        claims = {
            "sub": owner,
            "org_id": LOCAL,
            "email": "",
            "key": key.id if key else 0,
            "exp": int(time.time() + TOKEN_SECONDS),
        }
        text = f"{_base64(_JWT_HEAD)}.{_base64(orjson.dumps(claims))}"
        return f"{text}.{_base64(self._sign(text))}"

    def find(self, token: str) -> Key | None:
        """The live key that a token of ours stands for."""
        text, _, signature = token.rpartition(".")
        try:
            given = base64.urlsafe_b64decode(signature + "==")
            if not hmac.compare_digest(given, self._sign(text)):
                return None
            claims = orjson.loads(base64.urlsafe_b64decode(text.partition(".")[2] + "=="))
        except (ValueError, binascii.Error):
            return None
        if self._keys is None or claims["exp"] < time.time():
            return None
        return self._keys.live(claims["key"])

    def _sign(self, text: str) -> bytes:
        return hmac.digest(self._secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256)


class Access:
    """With keys, a request needs one, and sees what its owner has. Without, everything belongs to one
    owner, and only programs of this machine may ask: not a page in its browser."""

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing | None = None,
        tokens: Tokens | None = None,
        hosts: frozenset[str] | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._tokens = tokens
        self._hosts = hosts  # names a request may call this server by; None: any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Always set: a task may have been started from within another request's.
        CALLER.set(LOCAL)
        status, refusal = self._refusal(scope)
        if refusal is not None:
            metrics.count(
                "tinsmith_refused_requests_total", reason="key" if status == 401 else "host"
            )
            await answer({"detail": refusal}, status)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str | None]:
        if self._hosts is not None and (stranger := _stranger(scope["headers"], self._hosts)):
            return 403, (
                f"this service answers programs of this machine only, and the request came by {stranger}; "
                "use http://127.0.0.1, or serve with --require-keys."
            )
        if self._keys is None or _is_open(scope):
            return 200, None
        given = credential(scope["headers"])
        if given is None:
            return 401, (
                "this service needs a key: set TINKER_API_KEY to one made by `tinsmith keys create` "
                "(sent as X-API-Key or Authorization: Bearer)."
            )
        key = self._find(given)
        if key is None:
            return 401, (
                "this key is unknown or revoked; ask whoever runs the service for another "
                "(`tinsmith keys create`)."
            )
        self._keys.used(key)
        scope[KEY] = key
        CALLER.set(key.owner)
        if (facts := logs.REQUEST.get()) is not None:
            facts.owner = key.owner
        return 200, None

    def _find(self, given: str) -> Key | None:
        assert self._keys is not None
        if given.startswith("eyJ") and self._tokens is not None:
            return self._tokens.find(given)
        return self._keys.find(given)


def _is_open(scope: Scope) -> bool:
    """Health is for everybody; links to files are signed, and the SDK fetches them without its key."""
    path = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (path == HEALTH or path.startswith(f"{LINKS}/"))


def credential(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key a request carries: X-API-Key as the SDK sends it, or a bearer token as OpenAI's clients."""
    bearer = None
    for name, value in headers:
        if name == b"x-api-key" and value.strip():
            return value.strip().decode("latin-1")[: LONGEST * 4]
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            bearer = value[7:].strip().decode("latin-1")[: LONGEST * 4]
    return bearer or None


def _stranger(headers: Iterable[tuple[bytes, bytes]], hosts: frozenset[str]) -> str | None:
    """A name or a web page that is not of this machine: a page elsewhere must not reach the service
    through a browser here, neither directly (Origin) nor by a name that leads here (Host)."""
    for name, value in headers:
        if name == b"host" and _host(f"//{value.decode('latin-1')}") not in hosts:
            return "another name"
        if name == b"origin" and _host(value.decode("latin-1")) not in hosts:
            return "a page of another site"
    return None


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
