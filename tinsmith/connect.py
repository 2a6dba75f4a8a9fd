"""The door to a service: `connect()` finds or starts the local one, or goes to a URL or to hosted Tinker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from filelock import FileLock, Timeout

from tinsmith import settings
from tinsmith.errors import ConfigError, ServiceError, StorageError

if TYPE_CHECKING:
    import tinker

SERVE = (sys.executable, "-m", "tinsmith", "serve", "--port", "0", "--announce")
START_SECONDS = 120.0  # a cold first import of torch on a slow disk takes most of a minute
PROBE_SECONDS = 5.0
POLL_SECONDS = 0.05
PAUSES = (0.25, 0.5, 1.0)  # seconds between the tries of a request whose failure may pass
PASSING = (408, 429, 500, 502, 503, 504)  # HTTP statuses that may be gone at the next try
ANSWER_BYTES = 1 << 20
LOG_LINES = 8
KEY_FORMS = ("tml-", "eyJ")  # a key or a JWT; the SDK refuses anything else
LOOPBACK = ("127.0.0.1", "localhost", "::1")

Report = Callable[[str], None]


@dataclass(frozen=True)
class ServiceAddress:
    """What a running local service wrote in service.json."""

    url: str
    pid: int
    started_at: float
    version: str
    token: str
    keys: bool = False  # whether its requests need a key; it then tells its token to nobody


def connect(target: str | None = None, *, report: Report | None = None) -> tinker.ServiceClient:
    """A client of the local service (None or "local"), of hosted Tinker ("hosted") or of a URL.

    `report` hears one line when a local service has to be started first.
    """
    check_target(target)
    url, key = _url_and_key(target, report)
    import tinker

    return tinker.ServiceClient(base_url=url, api_key=key)


def rest_client(target: str | None = None) -> tinker.RestClient:
    """A client for what the service keeps: runs and checkpoints. Same target as `connect`, afterwards."""
    url, key = _url_and_key(target, None)
    import tinker

    return tinker.RestClient(base_url=url, api_key=key)


def _url_and_key(target: str | None, report: Report | None) -> tuple[str, str]:
    if target is None or target == "local":
        address = find_or_start(report)
        url, key = address.url, _local_key(address)
    elif target == "hosted":
        url, key = settings.HOSTED_URL, _hosted_key()
    else:
        url = target.rstrip("/")
        key = _hosted_key() if settings.hosted_api_key() else settings.LOCAL_API_KEY
    if _is_loopback(url):
        _prepare_loopback(url)
    return url, key


def check_target(target: str | None) -> None:
    """Refuse a target that cannot work, starting nothing: no key, not a URL, nobody there."""
    if target == "hosted":
        _hosted_key()
    elif target not in (None, "local"):
        check_url(target)


def find_or_start(report: Report | None = None) -> ServiceAddress:
    """The one local service of this home; starts it when there is none, safely among many callers."""
    if address := local_service():
        return address
    with _starting_lock():
        return _await_running() or _start(report)


def local_service() -> ServiceAddress | None:
    """The local service that is running and answers, if there is one; starts nothing."""
    address = read_address(settings.service_file())
    if address is None or not _is_running(address):
        return None
    return address if _answers_as(address) else None


def read_address(path: Path) -> ServiceAddress | None:
    """The contents of a service.json, None when it is missing or not one."""
    try:
        fields = json.loads(path.read_text())
        return ServiceAddress(
            url=str(fields["url"]).rstrip("/"),
            pid=int(fields["pid"]),
            started_at=float(fields["started_at"]),
            version=str(fields["version"]),
            token=str(fields["token"]),
            keys=bool(fields.get("keys", False)),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_url(target: str) -> None:
    """Refuse a URL unless something there answers like a Tinker service."""
    parts = urllib.parse.urlsplit(target)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            "the service must be `local`, `hosted` or a URL such as "
            f"http://127.0.0.1:{settings.DEFAULT_PORT} (got {target!r})."
        )
    url = target.rstrip("/")
    statuses: list[int] = []
    for path in ("healthz", "get_server_capabilities"):
        try:
            _get_patiently(f"{url}/api/v1/{path}")
            return
        except urllib.error.HTTPError as error:
            statuses.append(error.code)
            if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                return  # it is there and wants the key, which the SDK sends
        except ValueError:
            statuses.append(HTTPStatus.OK)  # an answer, but no JSON: some other web server
        except OSError as error:
            raise ServiceError(
                f"nothing answers at {url} ({_reason(error)}). Start a service there with "
                f"`tinsmith serve --port {parts.port or 80}`, or leave the URL out to use the local one."
            ) from error
    if statuses[0] in PASSING:
        raise ServiceError(
            f"the service at {url} answers HTTP {statuses[0]}, {len(PAUSES) + 1} times one after another: it is "
            "overloaded or being restarted. Try again in a minute, or check the URL."
        )
    raise ServiceError(
        f"something answers at {url}, but not as a Tinker service (HTTP {statuses[-1]}). Check the URL."
    )


def _local_key(address: ServiceAddress) -> str:
    key = settings.hosted_api_key()
    if not address.keys:
        return settings.LOCAL_API_KEY
    if key is None:
        raise ConfigError(
            f"the local service at {address.url} asks for keys and TINKER_API_KEY is not set. "
            "Type: export TINKER_API_KEY=$(tinsmith keys create NAME)"
        )
    return key


def _hosted_key() -> str:
    key = settings.hosted_api_key()
    if key is None:
        raise ConfigError(
            "hosted Tinker needs a key and TINKER_API_KEY is not set. Type: export TINKER_API_KEY=tml-... "
            "(or leave `hosted` out to train on this machine)."
        )
    if not key.startswith(KEY_FORMS):
        raise ConfigError(
            "TINKER_API_KEY does not look like a Tinker key: one begins with `tml-`. "
            "Type: export TINKER_API_KEY=tml-..."
        )
    return key


# ── the local service's process ──────────────────────────────────────────────────────────────


@contextmanager
def _starting_lock() -> Iterator[None]:
    """Held by the one process that may start the local service of this home."""
    lock = FileLock(settings.home() / "service.lock", timeout=START_SECONDS + PROBE_SECONDS)
    try:
        settings.service_directory().mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise ServiceError(
            f"another process has been starting the local service for {START_SECONDS:.0f} s. "
            f"Look at {_log_file()}, then try again."
        ) from error
    except OSError as error:
        raise StorageError(
            f"cannot write to {settings.home()}: {error.strerror or error}. "
            "Make it writable, or set TINSMITH_HOME to a directory that is."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _await_running() -> ServiceAddress | None:
    """The service that service.json names, given time to answer when its process is alive but busy."""
    deadline = time.monotonic() + 4 * PROBE_SECONDS
    while (address := read_address(settings.service_file())) and _is_running(address):
        answer = _health(address.url)
        if answer is not None:
            return address if _is_of(answer, address) else None
        if time.monotonic() > deadline:
            raise ServiceError(
                f"the local service (pid {address.pid}) is running but does not answer at {address.url}. "
                f"Look at {_log_file()}, or end it with `kill {address.pid}` and try again."
            )
        time.sleep(POLL_SECONDS)
    return None


def _start(report: Report | None) -> ServiceAddress:
    """Start `tinsmith serve` detached and wait until it answers. The caller holds the lock."""
    settings.service_file().unlink(
        missing_ok=True
    )  # stale: dead process, reused pid or other token
    if report:
        report("starting the local service")
    home = settings.home().resolve()
    log = _log_file()
    with log.open("ab") as output:
        written_before = output.tell()
        child = subprocess.Popen(
            [*SERVE, "--idle-seconds", f"{settings.idle_seconds():g}"],
            cwd=home,  # so that it holds no directory of the user's busy
            env={**os.environ, "TINSMITH_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # closing this terminal does not end it
        )
    deadline = time.monotonic() + START_SECONDS
    while child.poll() is None:
        if address := local_service():
            _forget(child)
            return address
        if time.monotonic() > deadline:
            child.kill()
            child.wait()
            raise ServiceError(
                f"the local service was not ready after {START_SECONDS:.0f} s. "
                + _log_tail(log, written_before)
            )
        time.sleep(POLL_SECONDS)
    raise ServiceError(
        f"the local service ended while starting (exit code {child.returncode}). "
        + _log_tail(log, written_before)
    )


def _forget(child: subprocess.Popen[bytes]) -> None:
    """Let the service live on; a thread reaps it should it end before we do."""
    threading.Thread(target=child.wait, name="reap-service", daemon=True).start()


def _is_running(address: ServiceAddress) -> bool:
    """Whether that very process is alive: its start time tells it from a later one with its pid."""
    try:
        process = psutil.Process(address.pid)
        return (
            abs(process.create_time() - address.started_at) <= 1.0
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False


def _answers_as(address: ServiceAddress) -> bool:
    answer = _health(address.url)
    return answer is not None and _is_of(answer, address)


def _is_of(answer: dict[str, Any], address: ServiceAddress) -> bool:
    """Whether an answer to healthz is the announced service's. One with keys shows no token; that its
    process is alive and something answers as a service must do."""
    return answer.get("token") == (None if address.keys else address.token) and "status" in answer


def _health(url: str) -> dict[str, Any] | None:
    """The answer to healthz; None when nobody answers, {} when somebody else does."""
    try:
        return _get(f"{url}/api/v1/healthz")
    except (urllib.error.HTTPError, ValueError):
        return {}
    except OSError:
        return None


def _get_patiently(url: str) -> dict[str, Any]:
    """As `_get`, a few times over when the answer says that it may pass, or breaks off."""
    for pause in PAUSES:
        try:
            return _get(url)
        except urllib.error.HTTPError as error:
            if error.code not in PASSING:
                raise
        except ConnectionResetError:
            pass  # not a refusal: somebody is there
        time.sleep(pause)
    return _get(url)


def _get(url: str) -> dict[str, Any]:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    handlers = [urllib.request.ProxyHandler({})] if _is_loopback(url) else []
    with urllib.request.build_opener(*handlers).open(request, timeout=PROBE_SECONDS) as response:
        body = response.read(ANSWER_BYTES)
        if response.length and len(body) < ANSWER_BYTES:
            raise ConnectionResetError("the answer broke off")
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")
    return answer


def _reason(error: OSError) -> str:
    cause = getattr(error, "reason", error)
    return getattr(cause, "strerror", None) or str(cause) or type(error).__name__


def _log_file() -> Path:
    return settings.service_directory() / "service.log"


def _log_tail(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    said = "\n".join(f"  {line}" for line in lines) or "  (it printed nothing)"
    return f"Its log {log} ends with:\n{said}"


# ── this process's environment ───────────────────────────────────────────────────────────────


def _is_loopback(url: str) -> bool:
    return urllib.parse.urlsplit(url).hostname in LOOPBACK


def _prepare_loopback(url: str) -> None:
    """Keep the SDK's traffic to this machine off any proxy, and its telemetry switched off.

    The SDK reads both from the environment only. A telemetry choice of the user's stands.
    """
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    host = urllib.parse.urlsplit(url).hostname or ""
    for name in ("NO_PROXY", "no_proxy"):
        listed = [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]
        if host not in listed and "*" not in listed:
            os.environ[name] = ",".join([*listed, host])
