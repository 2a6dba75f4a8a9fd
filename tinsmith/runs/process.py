"""The operating system's side of a run: a detached process, its identity and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil

# Two readings of one process's start time differ by rounding in a file, never by this much.
START_TIME_TOLERANCE = 1.0


def spawn(argv: Sequence[str], *, directory: Path, log: Path) -> int:
    """Start `argv` in `directory` as the leader of its own session and return its pid.

    The child outlives the terminal and this process; what it prints is appended to `log`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            list(argv),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # As long as we live the child is ours to reap; without this a dead one would linger as a zombie.
    threading.Thread(target=child.wait, name=f"reap-{child.pid}", daemon=True).start()
    return child.pid


def started_at(pid: int) -> float | None:
    """When the process with this pid began (seconds since the epoch), None when there is none."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def is_alive(pid: int, started: float) -> bool:
    """Whether that very process still runs: a reused pid and a zombie both count as dead."""
    try:
        process = psutil.Process(pid)
        return (
            abs(process.create_time() - started) <= START_TIME_TOLERANCE
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False


def interrupt(pid: int, started: float) -> bool:
    """Ask the process to save and stop (SIGINT); False when it is already gone."""
    return is_alive(pid, started) and _send(pid, signal.SIGINT)


def kill(pid: int, started: float) -> bool:
    """End the process and everything in its group at once; False when it is already gone."""
    return is_alive(pid, started) and _send_group(pid, signal.SIGKILL)


def wait(pid: int, started: float, *, seconds: float) -> bool:
    """Wait for the process to end; True when it has."""
    try:
        process = psutil.Process(pid)
    except psutil.Error:
        return True
    if not is_alive(pid, started):
        return True
    try:
        process.wait(timeout=seconds)
    except psutil.TimeoutExpired:
        return not is_alive(pid, started)
    return True


def stop(pid: int, started: float, *, grace_seconds: float) -> bool:
    """Ask the process to stop, then end its whole group if it has not; True when it went by itself."""
    if not interrupt(pid, started):
        return True
    if wait(pid, started, seconds=grace_seconds):
        return True
    kill(pid, started)
    wait(pid, started, seconds=5.0)
    return False


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _send_group(pid: int, number: signal.Signals) -> bool:
    """Signal the process's group when it leads one of its own, else only the process."""
    try:
        group = os.getpgid(pid)
        if group == pid:
            os.killpg(group, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
