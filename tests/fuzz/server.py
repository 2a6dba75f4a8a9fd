"""A real `tinsmith serve` process with the embedded model, and what it takes of memory meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

READY = "serves the Tinker API at "


@dataclass
class Target:
    """The server under attack."""

    url: str
    process: subprocess.Popen[str]
    log: Path
    peak: int = 0  # resident bytes, at most

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def resident(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def tracebacks(self) -> list[str]:
        """What the server itself holds to be its own fault."""
        found: list[str] = []
        for line in self.log.read_text().splitlines():
            event = json.loads(line) if line.startswith("{") else {"error": line}
            if "error" in event:
                found.append(f"{event.get('message')} {event.get('route')} {event['error'][-800:]}")
        return found


@contextmanager
def serving(directory: Path, *options: str) -> Iterator[Target]:
    log = directory / "server.log"
    directory.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tinsmith", "serve", "--port", "0", "--device", "cpu"),
                *("--threads", "1", "--directory", str(directory / "service"), *options),
            ],
            env=os.environ | {"TINSMITH_HOME": str(directory), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert READY in line, f"{line}{log.read_text()}"
    target = Target(line.split(READY)[1].split()[0], process, log)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(target, done), daemon=True)
    watcher.start()
    try:
        yield target
    finally:
        done.set()
        watcher.join()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _watch(target: Target, done: threading.Event) -> None:
    while not done.wait(0.02):
        try:
            target.peak = max(target.peak, target.resident())
        except psutil.NoSuchProcess:
            return
