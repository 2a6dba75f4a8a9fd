"""`tinsmith serve`: the Tinker-compatible service, on this machine only."""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

import tinsmith
from tinsmith import settings
from tinsmith.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from tinsmith.service.core import Service

HOST = "127.0.0.1"
KEEP_ALIVE_SECONDS = (
    120  # longer than clients keep a connection idle, so that none is cut mid-request
)
OPEN_FILES = 65536
SWITCH_SECONDS = 0.001  # the engine's thread yields to waiting requests this often


@click.command(help="Serve the Tinker API on this machine; any script for Tinker can use it.")
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
    port: int,
    directory: Path | None,
    device: str,
    dtype: str,
    threads: int | None,
    idle_seconds: float,
    announce: bool,
) -> int:
    listener = _listen(port)
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    token = secrets.token_hex(16)
    _raise_file_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    with _own(directory or settings.service_directory()) as home:
        from tinsmith.service.core import Service
        from tinsmith.service.engine.torch_backend import TorchBackend

        backend = TorchBackend(
            device=device,
            dtype=dtype,
            threads=threads if threads is not None else settings.threads(),
        )
        service = Service(
            backend,
            home,
            token=token,
            default_model=settings.EMBEDDED_MODEL,
            idle_seconds=idle_seconds,
        )
        # In its usual place a service is the machine's: `tinsmith train` should find and use it.
        announced = announce or directory is None
        announcement = _announcement(url, token) if announced else None
        _serve(service, listener, announcement, ready=lambda: _say_ready(url, home))
    return 0


def run(argv: Sequence[str]) -> int:
    """The command with these arguments; what is wrong with them is a ConfigError."""
    try:
        return command.main(list(argv), prog_name="tinsmith serve", standalone_mode=False) or 0
    except click.ClickException as error:
        raise ConfigError(
            f"{error.format_message()} `tinsmith serve --help` lists the options."
        ) from None
    except click.Abort:
        raise KeyboardInterrupt from None


def _listen(port: int) -> socket.socket:
    """A bound socket, so that a port in use is known before anything is loaded."""
    # Only of sockets that say they are TCP does asyncio switch off the waiting for more to send,
    # which would add 40 ms to every answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        what = (
            "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        )
        raise ConfigError(
            f"port {port} {what}; stop what uses it, or choose another with --port (0: any free one)."
        ) from None
    return listener


@contextmanager
def _own(directory: Path) -> Iterator[Path]:
    """The directory, made if need be, for this process alone."""
    from filelock import FileLock, Timeout

    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / "service.lock")
        lock.acquire(timeout=0)
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


def _say_ready(url: str, home: Path) -> None:
    print(f"tinsmith serves the Tinker API at {url} (files in {home}; Ctrl-C stops it)", flush=True)


def _announcement(url: str, token: str) -> dict[str, Any]:
    import psutil

    return {
        "url": url,
        "pid": os.getpid(),
        "started_at": psutil.Process().create_time(),
        "version": tinsmith.__version__,
        "token": token,
    }


def _announce(announcement: dict[str, Any], to: Path) -> None:
    """Written whole or not at all: other processes read it at any moment."""
    part = to.with_name(f"{to.name}.{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
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


def _serve(
    service: Service,
    listener: socket.socket,
    announcement: dict[str, Any] | None,
    ready: Callable[[], None],
) -> None:
    """Serves until a signal or idleness ends it: no new requests, the running work ends, files close."""
    import uvicorn

    from tinsmith.service.app import create_app

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
            create_app(service),
            log_level="warning",
            access_log=False,
            lifespan="on",
            ws="none",
            proxy_headers=False,
            server_header=False,
            date_header=False,
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
