"""`tinsmith serve`: the Tinker-compatible service, on this machine or for those with a key."""

from __future__ import annotations

import errno
import gc
import ipaddress
import json
import os
import resource
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import click

import tinsmith
from tinsmith import settings
from tinsmith.cli.keys import DATABASE, make_private, opened
from tinsmith.cli.options import run_command
from tinsmith.cli.serve_help import EPILOG, Command
from tinsmith.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from tinsmith.service.core import Service
    from tinsmith.service.store.keys import KeyRing

HOST = "127.0.0.1"
KEEP_ALIVE_SECONDS = (
    120  # longer than clients keep a connection idle, so that none is cut mid-request
)
OPEN_FILES = 65536
CONNECTIONS = 20_000  # at a time; beyond them a request is asked to come again
MIB = 2**20
SWITCH_SECONDS = 0.001  # the engine's thread yields to waiting requests this often


@click.command(
    cls=Command,
    help="Serve the Tinker API on this machine; any script for Tinker can use it.",
    epilog=EPILOG,
)
@click.option(
    "--host",
    default=HOST,
    show_default=True,
    help="Address to listen on. One that other machines reach (0.0.0.0: all) needs API keys.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=settings.DEFAULT_PORT,
    show_default=True,
    help="0 takes any free port.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Database and checkpoints. [default: ~/.tinsmith/service]",
)
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or auto.")
@click.option(
    "--dtype", default="auto", show_default=True, help="float32, bfloat16 or auto (by device)."
)
@click.option("--threads", type=click.IntRange(1), help="CPU threads of the engine.")
@click.option(
    "--memory",
    type=click.IntRange(1),
    help="For base models and their caches, in MiB. [default: by the machine, see below]",
)
@click.option(
    "--adapter-memory",
    type=click.IntRange(1),
    help="For models in training and weights to sample from, in MiB. [default: a fourth of --memory]",
)
@click.option("--require-keys", is_flag=True, help="Ask for API keys on this machine, too.")
@click.option(
    "--max-body",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Largest request, in MiB, after decompression.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="From info on, one line for each request.",
)
@click.option(
    "--idle-seconds",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Stop after so long without a request or work; 0 never stops.",
)
@click.option(
    "--announce",
    is_flag=True,
    help="Say in service.json how to reach this service; done by itself without --directory.",
)
def command(
    host: str,
    port: int,
    directory: Path | None,
    device: str,
    dtype: str,
    threads: int | None,
    memory: int | None,
    adapter_memory: int | None,
    require_keys: bool,
    max_body: int,
    log_format: Literal["text", "json"],
    log_level: str,
    idle_seconds: float,
    announce: bool,
) -> int:
    listener = _listen(host, port)
    keyed = require_keys or not _is_loopback(listener)
    url = _url(listener)
    token = secrets.token_hex(16)
    _raise_file_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    with (
        _own(directory or settings.service_directory()) as home,
        opened(home) if keyed else nullcontext() as keys,
    ):
        if keys is not None:
            _check_keys(keys, host, directory)
        from tinsmith.service import logs
        from tinsmith.service.core import Service
        from tinsmith.service.engine.torch_backend import TorchBackend

        os.umask(0o077)  # requests and weights are nobody else's
        logs.set_up(log_format, log_level)
        backend = TorchBackend(
            device=device,
            dtype=dtype,
            threads=threads if threads is not None else settings.threads(),
            memory=None if memory is None else memory * MIB,
        )
        service = Service(
            backend,
            home,
            token="" if keyed else token,  # it would be told to everybody
            default_model=settings.EMBEDDED_MODEL,
            idle_seconds=idle_seconds,
            adapter_bytes=None if adapter_memory is None else adapter_memory * MIB,
            paths_allowed=not keyed,  # this machine's files are not for everybody with a key
        )
        # In its usual place a service is the machine's: `tinsmith train` should find and use it.
        announced = announce or directory is None
        announcement = _announcement(url, token, keyed) if announced else None
        app = _app(service, keys, max_body * MIB, str(_address(listener)))
        _serve(service, app, listener, announcement, ready=lambda: _say_ready(url, home, keyed))
    return 0


def run(argv: Sequence[str]) -> int:
    return run_command(command, "serve", argv)


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that a port in use is known before anything is loaded."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise _wrong_host(host, error) from None
    family, address = found[0][0], found[0][4]
    # Only of sockets that say they are TCP does asyncio switch off the waiting for more to send,
    # which would add 40 ms to every answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _wrong_host(host, error) from None
        what = (
            "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        )
        raise ConfigError(
            f"port {port} {what}; stop what uses it, or choose another with --port (0: any free one)."
        ) from None
    return listener


def _wrong_host(host: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"--host {host!r} is not an address of this machine ({error}); try 127.0.0.1 or 0.0.0.0."
    )


def _address(listener: socket.socket) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])


def _is_loopback(listener: socket.socket) -> bool:
    return _address(listener).is_loopback


def _url(listener: socket.socket) -> str:
    """How programs of this machine reach it."""
    address = _address(listener)
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"http://{host}:{listener.getsockname()[1]}"


def _check_keys(keys: KeyRing, host: str, directory: Path | None) -> None:
    if not keys.any_live():
        where = f" --directory {directory}" if directory is not None else ""
        raise ConfigError(
            f"serving on {host} with keys needs one, and there is none yet. "
            f"Type: tinsmith keys create NAME{where}"
        )


@contextmanager
def _own(directory: Path) -> Iterator[Path]:
    """The directory, made if need be, for this process alone."""
    from filelock import FileLock, Timeout

    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock(directory / "service.lock")
        lock.acquire(timeout=0)
        make_private(directory / DATABASE)
    except Timeout:
        raise ConfigError(
            f"another service uses {directory}; stop it, or choose another --directory."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be used: {error.strerror}; choose a writable --directory."
        ) from None
    try:
        yield directory
    finally:
        lock.release()


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _say_ready(url: str, home: Path, keyed: bool) -> None:
    how = "; requests need a key" if keyed else ""
    print(
        f"tinsmith serves the Tinker API at {url} (files in {home}{how}; Ctrl-C stops it)",
        flush=True,
    )


def _announcement(url: str, token: str, keyed: bool) -> dict[str, Any]:
    import psutil

    return {
        "url": url,
        "pid": os.getpid(),
        "started_at": psutil.Process().create_time(),
        "version": tinsmith.__version__,
        "token": token,
        "keys": keyed,
    }


def _announce(announcement: dict[str, Any], to: Path) -> None:
    """Written whole or not at all: other processes read it at any moment."""
    part = to.with_name(f"{to.name}.{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        make_private(part)
        part.write_text(json.dumps(announcement))
        part.replace(to)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(
            f"{to} could not be written: {error.strerror}; free some space or set TINSMITH_HOME."
        ) from None


def _withdraw(announcement: dict[str, Any], at: Path) -> None:
    """Removes the announcement, unless another service has put its own there."""
    try:
        if json.loads(at.read_text()).get("token") == announcement["token"]:
            at.unlink()
    except (OSError, ValueError):
        return


def _app(service: Service, keys: KeyRing | None, max_body: int, address: str) -> ASGIApp:
    from tinsmith.service.access import LOOPBACK
    from tinsmith.service.app import create_app
    from tinsmith.service.limits import Limits

    # Without keys, who reaches this machine's loopback may do everything: only programs may, not pages.
    hosts = LOOPBACK | {address} if keys is None else None
    return create_app(service, keys, limits=Limits(body_bytes=max_body), hosts=hosts)


def _serve(
    service: Service,
    app: ASGIApp,
    listener: socket.socket,
    announcement: dict[str, Any] | None,
    ready: Callable[[], None],
) -> None:
    """Serves until a signal or idleness ends it: no new requests, the running work ends, files close."""
    import uvicorn

    from tinsmith.service.protocol import BoundedProtocol

    where = settings.service_file()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            gc.freeze()  # what is loaded by now stays; the collector need not look at it again
            if self.started:
                if announcement is not None:
                    _announce(announcement, where)
                ready()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            service.begin_close()
            super().handle_exit(sig, frame)

    server = Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            log_config=None,  # its lines are ours
            access_log=False,
            lifespan="on",
            ws="none",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=10,
        )
    )

    def stop() -> None:
        service.begin_close()
        server.should_exit = True

    service.on_idle = stop
    # uvicorn raises the signal it was stopped by once more when it is done: by then it is answered.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    try:
        server.run(sockets=[listener])
    finally:
        if announcement is not None:
            _withdraw(announcement, where)
