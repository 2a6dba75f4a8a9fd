"""The process that does the algebra: reads questions from stdin, answers on stdout, within hard limits.

It is expendable. A question that takes too much processor time ends it by a signal that nothing in the
process can hold up; one that takes too much memory fails in it; it leaves when its parent does.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import resource
import select
import signal
import sys
import threading
import time
from typing import Any, NoReturn

PARENT_CHECK_SECONDS = 2.0
TIRED = 0.6  # of the memory limit: a worker that ever used more leaves after its answer
RECURSION = 3000


def main(argv: list[str]) -> None:
    """Serve until stdin ends. Arguments: the parent's id, seconds a question, bytes of memory."""
    parent, seconds, memory = int(argv[0]), float(argv[1]), int(argv[2])
    for ignored in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group; the parent decides
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    answers = _private_stdout()
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs, parent), daemon=True).start()
    logging.disable(logging.CRITICAL)
    try:
        from tinsmith.envs.grading import judge
    except ImportError as error:
        _say(answers, {"failed": str(error)})
        return
    judge.warm_up()
    judge.forbid_eval()
    sys.setrecursionlimit(RECURSION)
    _limit(memory)
    _say(answers, {"ready": True})
    while True:
        answer, expected = json.loads(jobs.get())
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, seconds)
        reply: dict[str, Any] = _answer(judge, answer, expected)
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply["seconds"] = time.process_time() - begun
        reply["peak"] = _peak_bytes()
        reply["last"] = reply["peak"] > TIRED * memory or reply.get("note", "") != ""
        _say(answers, reply)
        if reply["last"]:
            return


def _answer(judge: Any, answer: str, expected: str) -> dict[str, Any]:
    try:
        return {"same": bool(judge.judge(answer, expected))}
    except MemoryError:
        return {"same": False, "note": "the expression needs more memory than a grade may use"}
    except judge.TROUBLE:
        return {"same": False}


def _private_stdout() -> int:
    """The pipe for answers; what libraries print goes nowhere."""
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
