"""A few worker processes for algebra, started when first needed, replaced when a question breaks them."""

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

from tinsmith.errors import ConfigError, RunError

SIZE = 2
PROCESSOR_SECONDS = 4.0  # a question
WALL_SECONDS = 60.0  # a question, on a machine so busy that the worker hardly runs
START_SECONDS = 180.0
MEMORY_BYTES = 1 << 30
CLOSED = "the pool of graders is closed."
NEEDED = 'grading mathematics needs the package math-verify. Type: pip install "tinsmith[math]"'

# The parent's sys.path comes as an argument, because the environment is not inherited.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from tinsmith.envs.grading.worker import main; main(sys.argv[1:])"
)
# A fixed hash seed, since sympy's choices may depend on it: a grade is the same in every run.
_ENVIRONMENT = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class Limits:
    processor_seconds: float = PROCESSOR_SECONDS
    wall_seconds: float = WALL_SECONDS
    memory_bytes: int = MEMORY_BYTES


@dataclass(frozen=True)
class Verdict:
    same: bool
    note: str = ""
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

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process = subprocess.Popen(
            [
                sys.executable, "-P", "-B", "-s", "-c", _BOOT, json.dumps(sys.path),
                str(os.getpid()), str(limits.processor_seconds), str(limits.memory_bytes),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            bufsize=0,
        )  # fmt: skip
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

    def ask(self, answer: str, expected: str) -> tuple[Verdict, bool]:
        """The verdict, and whether this worker can be asked again."""
        if not self._send(json.dumps([answer, expected]).encode() + b"\n"):
            self.kill()
            return Verdict(False, "the grading process ended"), False
        line = self._line(self._limits.wall_seconds)
        if line is None:
            return Verdict(False, self._end(), self._limits.processor_seconds), False
        reply = json.loads(line)
        self.peak_bytes = reply["peak"]
        if reply["last"]:
            self.kill()
        verdict = Verdict(reply["same"], reply.get("note", ""), reply["seconds"])
        return verdict, not reply["last"]

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

    def __init__(self, size: int = SIZE, limits: Limits | None = None) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(NEEDED)
        self.usage = Usage()
        self._size = size
        self._limits = limits or Limits()
        self._jobs: queue.SimpleQueue[tuple[Future[Verdict], str, str] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads = 0
        self._workers: set[Worker] = set()
        self._closed = False

    def submit(self, answer: str, expected: str) -> Future[Verdict]:
        """The verdict to come. Cancelling it drops the question if no worker has it yet."""
        future: Future[Verdict] = Future()
        with self._lock:
            if self._closed:
                raise RunError(CLOSED)
            self._jobs.put((future, answer, expected))
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
            future, answer, expected = job
            if not future.set_running_or_notify_cancel():
                self._idle.release()
                continue
            try:
                worker = worker or self._start()
                verdict, alive = worker.ask(answer, expected)
                if self._closed:
                    raise RunError(CLOSED)
            except (OSError, RunError, KeyError, ValueError) as error:
                worker = self._gone(worker)
                self._idle.release()
                future.set_exception(error)
                continue
            self._count(worker, verdict, alive)
            worker = worker if alive else self._gone(worker)
            self._idle.release()  # before the asker goes on, so that it finds this thread idle
            future.set_result(verdict)
        self._gone(worker)

    def _start(self) -> Worker:
        worker = Worker(self._limits)
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

    def _count(self, worker: Worker, verdict: Verdict, alive: bool) -> None:
        with self._lock:
            self.usage.questions += 1
            self.usage.killed += not alive
            self.usage.processor_seconds += verdict.seconds
            self.usage.peak_bytes = max(self.usage.peak_bytes, worker.peak_bytes)


_shared: Pool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> Pool:
    """The pool of this process, made when first asked for."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Pool()
        return _shared


def close_shared_pool() -> None:
    """End this process's workers; the next question starts new ones."""
    global _shared
    with _shared_lock:
        pool, _shared = _shared, None
    if pool is not None:
        pool.close()


def _forget() -> None:
    # A forked child has neither the threads nor a right to the parent's workers.
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()


atexit.register(close_shared_pool)
os.register_at_fork(after_in_child=_forget)
