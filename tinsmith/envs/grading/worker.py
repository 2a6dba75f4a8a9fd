"""A process that does one kind of work: reads questions from stdin, answers on stdout, within hard limits.

It is expendable. A question that takes too much processor time ends it by a signal that nothing in the
process can hold up; one that takes too much memory fails in it; it leaves when its parent does.
"""

from __future__ import annotations

import json
import logging
import os
import pkgutil
import queue
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

PARENT_CHECK_SECONDS = 2.0
TIRED = 0.6  # of the memory limit: a worker that ever used more leaves after its answer


def main() -> None:
    """Serve until stdin ends. Arguments: what prepares, the parent's id, seconds a question, bytes of memory."""
    prepare = sys.argv[1]
    parent, seconds, memory = int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    for ignored in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group; the parent decides
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    answers = private_stdout()
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs, parent), daemon=True).start()
    logging.disable(logging.CRITICAL)
    try:
        work = pkgutil.resolve_name(prepare)()
    except ImportError as error:
        _say(answers, {"failed": str(error)})
        return
    _limit(memory)
    _say(answers, {"ready": True})
    while True:
        question = json.loads(jobs.get())
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, seconds)
        reply = _reply(work, question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply["seconds"] = time.process_time() - begun
        reply["peak"] = _peak_bytes()
        reply["last"] = reply["peak"] > TIRED * memory or reply["note"] != ""
        _say(answers, reply)
        if reply["last"]:
            return


def _reply(work: Callable[[Any], Any], question: Any) -> dict[str, Any]:
    try:
        return {"answer": work(question), "note": ""}
    except MemoryError:
        return {"answer": None, "note": "the expression needs more memory than a grade may use"}


@contextmanager
def untimed() -> Iterator[None]:
    """Around what does not depend on the text that is graded: its processor time is not limited."""
    left, _ = signal.setitimer(signal.ITIMER_PROF, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, left)


def private_stdout() -> int:
    """The pipe for answers; what libraries print goes nowhere."""
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return answers


def _say(answers: int, message: dict[str, Any]) -> None:
    line = json.dumps(message).encode() + b"\n"
    while line:
        line = line[os.write(answers, line) :]


def _listen(jobs: queue.SimpleQueue[bytes], parent: int) -> NoReturn:
    """Lines from the parent; the end of them, or of the parent, is the end of this process."""
    held = b""
    waiting = select.poll()
    waiting.register(0, select.POLLIN | select.POLLHUP)
    while os.getppid() == parent:
        if not waiting.poll(PARENT_CHECK_SECONDS * 1000):
            continue
        data = os.read(0, 65536)
        if not data:
            break
        *lines, held = (held + data).split(b"\n")
        for line in lines:
            jobs.put(line)
    os._exit(0)


def _limit(memory: int) -> None:
    """Bounded memory, no new processes, no files, no core dump; where the system knows the limit."""
    limits = {
        "RLIMIT_AS": memory,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": 0,
    }
    for name, value in limits.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (OSError, ValueError):  # macOS refuses some of them
            continue


def _peak_bytes() -> int:
    """Most memory this process ever had."""
    # Not ru_maxrss where it can be helped: on Linux that is inherited from the process that started this one.
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
