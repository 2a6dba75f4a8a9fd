"""A few worker processes for one kind of work, started when first needed, replaced when a question breaks them."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tinsmith.errors import ConfigError, RunError

SIZE = 2
START_SECONDS = 180.0
CLOSED = "the pool of graders is closed."

_BOOT = (
    "import json, pkgutil, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "pkgutil.resolve_name(sys.argv.pop(1))()"
)
# A fixed hash seed, as sympy's choices and some puzzles depend on it: they are the same in every run.
ENVIRONMENT = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def command(function: str, *arguments: str) -> list[str]:
    """Runs a "module:function" in a new Python; sys.path comes along, as the environment does not."""
    bare = [sys.executable, "-P", "-B", "-s", "-c", _BOOT]
    return [*bare, json.dumps(sys.path), function, *arguments]


@dataclass(frozen=True)
class Limits:
    """Of one question; the wall time is for a machine so busy that the worker hardly runs."""

    processor_seconds: float = 4.0
    wall_seconds: float = 60.0
    memory_bytes: int = 1 << 30


@dataclass(frozen=True)
class Kind:
    """What workers do: `prepare` runs in them once and returns what answers a question, both JSON."""

    prepare: str  # "module:function"
    package: str  # what it imports
    needed: str  # the sentence for when that is not installed
    limits: Limits = Limits()

    def require(self) -> None:
        if importlib.util.find_spec(self.package) is None:
            raise ConfigError(self.needed)


@dataclass(frozen=True)
class Reply:
    answer: Any  # None when there is none
    note: str = ""  # why there is none
    seconds: float = 0.0  # of processor time


@dataclass
class Usage:
    """What the pool has done so far."""

    questions: int = 0
    started: int = 0
    killed: int = 0
    processor_seconds: float = 0.0
    peak_bytes: int = 0
    pids: set[int] = field(default_factory=set)  # of the workers there are


class Worker:
    """One process, used by one thread at a time."""

    def __init__(self, prepare: str, limits: Limits) -> None:
        self._limits = limits
        self._process = subprocess.Popen(
            command(
                "tinsmith.envs.grading.worker:main",
                prepare,
                str(os.getpid()),
                str(limits.processor_seconds),
                str(limits.memory_bytes),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            bufsize=0,
        )
        self.pid = self._process.pid
        self.peak_bytes = 0
        self._held = b""

    def wait_until_ready(self) -> None:
        line = self._line(START_SECONDS)
        if line is None or "ready" not in json.loads(line):
            self.kill()
            reason = json.loads(line)["failed"] if line else "it ended or did not start in time"
            raise RunError(
                f"a process for grading could not be started: {reason}. Try `tinsmith doctor`."
            )

    def ask(self, question: Any) -> tuple[Reply, bool]:
        """The reply, and whether this worker can be asked again."""
        if not self._send(json.dumps(question).encode() + b"\n"):
            self.kill()
            return Reply(None, "the grading process ended"), False
        line = self._line(self._limits.wall_seconds)
        if line is None:
            return Reply(None, self._end(), self._limits.processor_seconds), False
        said = json.loads(line)
        self.peak_bytes = said["peak"]
        if said["last"]:
            self.kill()
        return Reply(said["answer"], said["note"], said["seconds"]), not said["last"]

    def stop(self) -> None:
        """End the process; from any thread."""
        self._process.kill()

    def kill(self) -> None:
        """End the process and let go of it; from the thread that uses it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _send(self, data: bytes) -> bool:
        assert self._process.stdin is not None
        try:
            while data:
                data = data[self._process.stdin.write(data) or 0 :]
        except BrokenPipeError:
            return False
        return True

    def _line(self, seconds: float) -> bytes | None:
        """The next line of the process, or None when it ended or took too long."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN | select.POLLHUP)
        deadline = time.monotonic() + seconds
        while b"\n" not in self._held:
            left = deadline - time.monotonic()
            if left <= 0 or not waiting.poll(left * 1000):
                return None
            data = os.read(descriptor, 65536)
            if not data:
                return None
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        return line

    def _end(self) -> str:
        """Why no line came, in words; the process is gone afterwards."""
        try:
            code = self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"took longer than {self._limits.wall_seconds:g} s"
        self.kill()
        if code == -signal.SIGPROF:
            return f"took longer than {self._limits.processor_seconds:g} s of processor time"
        return f"the grading process ended with code {code}"


class Pool:
    """Questions in, futures out; from any thread. Each of `size` threads owns one worker process."""

    def __init__(self, kind: Kind, size: int = SIZE, limits: Limits | None = None) -> None:
        kind.require()
        self.usage = Usage()
        self._prepare = kind.prepare
        self._size = size
        self._limits = limits or kind.limits
        self._jobs: queue.SimpleQueue[tuple[Future[Reply], Any] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads = 0
        self._workers: set[Worker] = set()
        self._closed = False

    def submit(self, question: Any) -> Future[Reply]:
        """The reply to come. Cancelling it drops the question if no worker has it yet."""
        future: Future[Reply] = Future()
        with self._lock:
            if self._closed:
                raise RunError(CLOSED)
            self._jobs.put((future, question))
            if not self._idle.acquire(blocking=False) and self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._serve, name="grading", daemon=True).start()
        return future

    def close(self) -> None:
        """End the workers; questions not answered yet are cancelled."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job[0].cancel()
        for _ in range(self._threads):
            self._jobs.put(None)
        for worker in workers:
            worker.stop()

    def _serve(self) -> None:
        worker: Worker | None = None
        while (job := self._jobs.get()) is not None:
            future, question = job
            if not future.set_running_or_notify_cancel():
                self._idle.release()
                continue
            try:
                worker = worker or self._start()
                reply, alive = worker.ask(question)
                if self._closed:
                    raise RunError(CLOSED)
            except (OSError, RunError, KeyError, ValueError) as error:
                worker = self._gone(worker)
                self._idle.release()
                future.set_exception(error)
                continue
            self._count(worker, reply, alive)
            worker = worker if alive else self._gone(worker)
            self._idle.release()  # before the asker goes on, so that it finds this thread idle
            future.set_result(reply)
        self._gone(worker)

    def _start(self) -> Worker:
        worker = Worker(self._prepare, self._limits)
        with self._lock:
            self._workers.add(worker)
            self.usage.started += 1
            self.usage.pids.add(worker.pid)
            closed = self._closed
        if closed:
            worker.stop()
        try:
            worker.wait_until_ready()
        except RunError:
            self._gone(worker)
            raise
        return worker

    def _gone(self, worker: Worker | None) -> None:
        if worker is not None:
            worker.kill()
            with self._lock:
                self._workers.discard(worker)
                self.usage.pids.discard(worker.pid)

    def _count(self, worker: Worker, reply: Reply, alive: bool) -> None:
        with self._lock:
            self.usage.questions += 1
            self.usage.killed += not alive
            self.usage.processor_seconds += reply.seconds
            self.usage.peak_bytes = max(self.usage.peak_bytes, worker.peak_bytes)


_shared: dict[Kind, Pool] = {}
_shared_lock = threading.Lock()


def shared_pool(kind: Kind) -> Pool:
    """This process's pool for a kind of work, made when first asked for."""
    with _shared_lock:
        if kind not in _shared:
            _shared[kind] = Pool(kind)
        return _shared[kind]


def close_shared_pools() -> None:
    """End this process's workers; the next question starts new ones."""
    global _shared
    with _shared_lock:
        pools, _shared = _shared, {}
    for pool in pools.values():
        pool.close()


def _forget() -> None:
    # A forked child has neither the threads nor a right to the parent's workers.
    global _shared, _shared_lock
    _shared, _shared_lock = {}, threading.Lock()


atexit.register(close_shared_pools)
os.register_at_fork(after_in_child=_forget)
