"""Processes that run reasoning_gym: one makes problems, one scores answers and is replaced when it breaks.

Both start from the same hash seed, as some tasks depend on it; so problems are the same in every run.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from tinsmith.errors import ConfigError, RunError

PROCESSOR_SECONDS = 5.0  # a score
WALL_SECONDS = 30.0
START_SECONDS = 180.0
MEMORY_BYTES = 2 << 30
# What a scorer raises on an answer that it cannot read. Anything else ends the process.
TROUBLE = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NameError,
    RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip
_ENVIRONMENT = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def _command(function: str) -> list[str]:
    """Runs a function of this module; sys.path comes along, as the environment does not."""
    boot = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        f"from tinsmith.envs.gym_process import {function}; {function}()"
    )
    return [sys.executable, "-P", "-B", "-s", "-c", boot, json.dumps(sys.path)]


def generate(
    task: str, args: dict[str, Any], sets: Sequence[tuple[int, int]]
) -> list[list[tuple[str, str]]]:
    """Questions and answers of each (seed, size); an answer is empty where the task has no model one."""
    done = subprocess.run(
        _command("make_problems"),
        input=json.dumps([task, args, list(sets)]).encode(),
        capture_output=True,
        env=_ENVIRONMENT,
    )
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise RunError(f"reasoning_gym could not make problems of {task}: {' '.join(reason)}")
    made = json.loads(done.stdout)
    if isinstance(made, str):
        raise ConfigError(made)
    return [[(question, answer) for question, answer in made_S] for made_S in made]


class Scorer:
    """Questions in, futures of (score, note) out; one at a time, in one process started when needed."""

    def __init__(
        self, processor_seconds: float = PROCESSOR_SECONDS, wall_seconds: float = WALL_SECONDS
    ) -> None:
        self._thread = ThreadPoolExecutor(1, "reasoning_gym")
        self._processor_seconds, self._wall_seconds = processor_seconds, wall_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._held = b""

    def submit(self, question: Sequence[Any]) -> Future[tuple[float, str]]:
        """[task, its settings, [seed, size, index] or the model answer, the answer given]"""
        return self._thread.submit(self._ask, question)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._kill()

    def _ask(self, question: Sequence[Any]) -> tuple[float, str]:
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([self._processor_seconds, *question]).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process, self._wall_seconds)
        except BrokenPipeError:
            line = None
        if line is None:
            self._kill()
            return 0.0, "the scorer took too long or ended"
        score, note = json.loads(line)
        return float(score), str(note)

    def _start(self) -> subprocess.Popen[bytes]:
        self._held = b""
        process = subprocess.Popen(
            _command("serve_scores"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
        )
        self._process = process
        if self._line(process, START_SECONDS) is None:
            self._kill()
            raise RunError("the process for scoring could not be started. Try `tinsmith doctor`.")
        return process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        """The next line, or None when the process ended or took too long."""
        assert process.stdout is not None
        waiting = select.poll()
        waiting.register(process.stdout.fileno(), select.POLLIN | select.POLLHUP)
        deadline = time.monotonic() + seconds
        while b"\n" not in self._held:
            left = deadline - time.monotonic()
            if left <= 0 or not waiting.poll(left * 1000):
                return None
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                return None
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        return line

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@lru_cache(maxsize=1)
def shared_scorer() -> Scorer:
    """The scorer of this process, made when first asked for."""
    scorer = Scorer()
    atexit.register(scorer.close)
    return scorer


def make_problems() -> None:
    """In a process of its own: reads one request from stdin, writes the problems, or a sentence."""
    task, args, sets = json.loads(sys.stdin.buffer.read())
    out = _private_stdout()
    from tinsmith.envs.reasoning_gym import make

    made: list[list[tuple[str, str]]] | str = []
    try:
        for seed, size in sets:
            problems = make(task, args, seed, size) if size else ()
            entries = [problems[index] for index in range(size)]
            made.append([(e["question"].strip(), _text(e["answer"])) for e in entries])
    except ConfigError as error:
        made = str(error)
    with os.fdopen(out, "wb") as answers:
        answers.write(json.dumps(made).encode())


def _text(answer: Any) -> str:
    return "" if answer is None else str(answer)


def serve_scores() -> None:
    """In a process of its own: answers until stdin ends, and ends by a signal when a score takes too long."""
    answers = _private_stdout()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    from tinsmith.envs.gym_guard import forbid_code
    from tinsmith.envs.reasoning_gym import make

    @lru_cache(maxsize=32)
    def made(task: str, args: str, seed: int, size: int) -> Any:
        return make(task, json.loads(args), seed, size)

    @lru_cache(maxsize=256)
    def entry(task: str, args: str, seed: int, size: int, index: int) -> Any:
        return made(task, args, seed, size)[index]

    made("chain_sum", "{}", 0, 1)
    forbid_code()
    _limit()
    os.write(answers, b'[0, "ready"]\n')
    for line in sys.stdin.buffer:
        seconds, task, args, place, answer = json.loads(line)
        args = json.dumps(args)
        if isinstance(place, str):
            problems, asked = made(task, args, 0, 1), {"answer": place, "metadata": {}}
        else:
            problems, asked = made(task, args, *place[:2]), entry(task, args, *place)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            said = [float(problems.score_answer(answer, asked)), ""]
        except TROUBLE as error:
            said = [0.0, f"the scorer could not read it: {type(error).__name__}"]
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(answers, json.dumps(said).encode() + b"\n")


def _private_stdout() -> int:
    """The pipe for answers; what tasks print goes nowhere."""
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return answers


def _limit() -> None:
    """Bounded memory, no files, no processes, no core dump; where the system knows the limit."""
    import resource

    limits = {"RLIMIT_AS": MEMORY_BYTES, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0, "RLIMIT_NPROC": 0}
    for name, value in limits.items():
        kind = getattr(resource, name, None)
        if kind is not None:
            try:
                resource.setrlimit(kind, (value, value))
            except (OSError, ValueError):  # some systems refuse some of them
                continue
