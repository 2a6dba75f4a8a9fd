"""Asks an OpenAI-compatible endpoint: one reply to a conversation, tried again where that may help."""

from __future__ import annotations

import asyncio
import email.utils
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinsmith.chat.render import Message
from tinsmith.errors import ServiceError
from tinsmith.rl.policy import derive_seed

if TYPE_CHECKING:
    import httpx

TRIES = 6
FIRST_WAIT = 0.5  # before the second try; it doubles from then on
LONGEST_WAIT = 60.0  # an endpoint that asks for more is waited for this long all the same
CONNECT_SECONDS = 10.0
LIST_SECONDS = 20.0
ANSWER_SECONDS = 600.0  # a long chain of thought takes minutes
SHOWN_CHARACTERS = 300
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# A setting that some endpoints refuse -> the name they want instead, None to go without.
OTHER_NAMES: dict[str, str | None] = {"max_tokens": "max_completion_tokens", "seed": None}


class EndpointError(ServiceError):
    """The endpoint gave no reply; `final` when it will not give one to any other request either."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class _Again(Exception):
    """Worth another try, after `wait` seconds when the endpoint said so."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True)
class Reply:
    text: str
    tokens: int | None  # said, as the endpoint counts them
    cut_off: bool


class Endpoint:
    """One model behind one address. Its key is sent to that address and shown nowhere."""

    def __init__(
        self,
        url: str,
        model: str,
        key: str | None,
        *,
        requests: int,
        answer_seconds: float = ANSWER_SECONDS,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        import httpx

        self.url = shown_url(url)
        self.model = model
        self._key = key
        self._sleep = sleep
        self._answer_seconds = answer_seconds
        self._slots = asyncio.Semaphore(requests)
        self._names: dict[str, str | None] = {}
        self._refusal: EndpointError | None = None
        local = urllib.parse.urlsplit(url).hostname in LOOPBACK
        self._client = httpx.AsyncClient(
            base_url=url.rstrip("/").removesuffix("/chat/completions") + "/",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(answer_seconds, connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=requests),
            trust_env=not local,  # traffic to this machine stays off any proxy
        )

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def models(self) -> list[str]:
        """The names it offers, [] where it does not say; EndpointError when it is not there at all."""
        import httpx

        try:
            response = await self._client.get("models", timeout=LIST_SECONDS)
        except httpx.ReadTimeout:
            return []  # it is there, and perhaps quicker to answer than to list
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EndpointError(
                f"nothing answers at {self.url} ({self._plain(str(error)) or type(error).__name__}). "
                "Check the address; it usually ends in /v1.",
                final=True,
            ) from None
        if response.status_code in (401, 403):
            raise self._refused(response)
        body = _json(response)
        listed = body.get("data") if isinstance(body, Mapping) else None
        rows = listed if isinstance(listed, list) else []
        return [
            self._plain(str(row["id"])) for row in rows if isinstance(row, Mapping) and "id" in row
        ]

    async def say(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int
    ) -> Reply:
        """What the model answers to the conversation."""
        asked: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "seed": seed,
        }
        if temperature != 1:  # which is what everybody takes; some models refuse to be told
            asked["temperature"] = temperature
        async with self._slots:
            reason = ""
            for tried in range(TRIES):
                if self._refusal is not None:
                    raise self._refusal
                try:
                    return await self._once(asked)
                except _Again as again:
                    reason = str(again)
                    if tried + 1 < TRIES:
                        await self._sleep(_wait(again.wait, tried, seed))
            raise EndpointError(f"{self.url} {reason}, also after {TRIES} tries")

    async def _once(self, asked: Mapping[str, Any]) -> Reply:
        import httpx

        names = {name: self._names.get(name, name) for name in asked}
        body = {other: asked[name] for name, other in names.items() if other is not None}
        try:
            response = await self._client.post("chat/completions", json=body)
        except httpx.ReadTimeout:
            raise EndpointError(
                f"{self.url} gave no answer within {self._answer_seconds:g} s"
            ) from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise _Again(
                f"cannot be reached ({self._plain(str(error)) or type(error).__name__})"
            ) from None
        if response.status_code == 200:
            return self._reply(response)
        said = self._said(response)
        if response.status_code in (400, 422):
            for name, other in OTHER_NAMES.items():
                if name in body and name in said:
                    self._names[name] = other
                    raise _Again(f"does not take {name}", wait=0.0)
            raise EndpointError(f"{self.url} answers HTTP {response.status_code}: {said}")
        if response.status_code in (401, 403, 404) or "insufficient_quota" in response.text:
            self._refusal = self._refused(response)
            raise self._refusal
        if response.status_code in (408, 429) or response.status_code >= 500:
            raise _Again(
                f"answers HTTP {response.status_code} ({said})",
                _retry_after(response.headers.get("retry-after")),
            )
        raise EndpointError(f"{self.url} answers HTTP {response.status_code}: {said}")

    def _reply(self, response: httpx.Response) -> Reply:
        body = _json(response)
        try:
            choice = body["choices"][0]
            content = choice["message"].get("content") or ""
            if isinstance(content, list):  # in parts, of which only text is speech
                content = "".join(str(part.get("text", "")) for part in content)
            usage = body.get("usage") or {}
            tokens = usage.get("completion_tokens")
            counted = tokens if isinstance(tokens, int) and tokens >= 0 else None
            return Reply(str(content), counted, choice.get("finish_reason") == "length")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise EndpointError(
                f"{self.url} does not answer like an OpenAI-compatible endpoint: {self._said(response)}. "
                "Check the address; it usually ends in /v1."
            ) from None

    def _refused(self, response: httpx.Response) -> EndpointError:
        status, said = response.status_code, self._said(response)
        if status in (401, 403):
            have = "OPENAI_API_KEY" if self._key else "no key, as OPENAI_API_KEY is not set,"
            return EndpointError(
                f"{self.url} does not let us in with {have} (HTTP {status}: {said}). "
                "Type: export OPENAI_API_KEY=...",
                final=True,
            )
        if status == 404:
            return EndpointError(
                f"{self.url} has no model {self.model!r}, or is no OpenAI-compatible endpoint (HTTP 404: "
                f"{said}). Check model= and the address, which usually ends in /v1.",
                final=True,
            )
        return EndpointError(
            f"the quota of the key is used up at {self.url} (HTTP {status}: {said}).", final=True
        )

    def _said(self, response: httpx.Response) -> str:
        """The endpoint's own words for what is wrong."""
        body = _json(response)
        words: Any = body
        for name in ("error", "message", "detail"):
            if isinstance(words, Mapping) and name in words:
                words = words[name]
        return self._plain(words if isinstance(words, str) else response.text) or "no reason given"

    def _plain(self, text: str) -> str:
        """Another program's words as one short harmless line, without the key."""
        if self._key:
            text = text.replace(self._key, "…")
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split()).rstrip(".")
        return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"


def shown_url(url: str) -> str:
    """An address without the name and password that may stand in it, or what a query may hold."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _retry_after(header: str | None) -> float | None:
    """Seconds to wait: a number, or a date."""
    if header is None:
        return None
    try:
        return max(float(header), 0.0)
    except ValueError:
        when = email.utils.parsedate_tz(header)
        return None if when is None else max(email.utils.mktime_tz(when) - time.time(), 0.0)


def _wait(asked: float | None, tried: int, seed: int) -> float:
    """What the endpoint asks for, else twice as long each time; rollouts do not all come back at once."""
    if asked == 0:
        return 0.0
    spread = derive_seed(seed, tried) % 1000 / 1000
    wait = FIRST_WAIT * 2**tried if asked is None else asked
    return min(wait * (1 + spread / 2), LONGEST_WAIT)
