"""Detached processes: they outlive nobody they should not, and are told apart from a reused pid."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from tinsmith.runs import process

# A shell that starts something in the background has it ignore interrupts, so they are asked for.
POLITE = (
    "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "print('up', flush=True)\n"
    "try: time.sleep(60)\n"
    "except KeyboardInterrupt: print('saved', flush=True)"
)
DEAF = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print('up', child.pid, flush=True); time.sleep(60)"
)


def start(code: str, directory: Path) -> tuple[int, float, Path]:
    """Spawn `python -c code` and wait until it has said that it is up."""
    log = directory / "logs" / "out.log"
    pid = process.spawn([sys.executable, "-c", code], directory=directory, log=log)
    started = process.started_at(pid)
    assert started is not None
    while "up" not in log.read_text():
        assert process.is_alive(pid, started), log.read_text()
    return pid, started, log


def test_a_spawned_process_leads_its_own_session_and_writes_to_the_log(tmp_path: Path) -> None:
    code = "import os, sys; print('up', os.getcwd(), os.getsid(0) == os.getpid(), repr(sys.stdin.read()))"
    log = tmp_path / "logs" / "out.log"
    log.parent.mkdir()
    log.write_text("before\n")
    pid = process.spawn([sys.executable, "-c", code], directory=tmp_path, log=log)
    started = process.started_at(pid)
    if started is not None:
        assert process.wait(pid, started, seconds=20)
    assert log.read_text() == f"before\nup {tmp_path} True ''\n"


def test_a_polite_process_stops_by_itself(tmp_path: Path) -> None:
    pid, started, log = start(POLITE, tmp_path)
    assert process.stop(pid, started, grace_seconds=20) is True
    assert not process.is_alive(pid, started)
    assert log.read_text() == "up\nsaved\n"
    assert process.stop(pid, started, grace_seconds=0) is True, "stopping twice is harmless"


def test_a_deaf_process_is_ended_with_its_whole_group(tmp_path: Path) -> None:
    pid, started, log = start(DEAF, tmp_path)
    grandchild = psutil.Process(int(log.read_text().split()[1]))
    assert process.stop(pid, started, grace_seconds=0.2) is False
    assert not process.is_alive(pid, started)
    grandchild.wait(timeout=10)


def test_a_reused_pid_is_not_our_process() -> None:
    own = process.started_at(os.getpid())
    assert own is not None
    assert process.is_alive(os.getpid(), own)
    assert not process.is_alive(os.getpid(), own - 3600)
    assert not process.interrupt(os.getpid(), own - 3600), "a stranger must never be signalled"


def test_a_zombie_counts_as_dead(tmp_path: Path) -> None:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], dict(os.environ))
    started = process.started_at(pid)
    assert started is not None
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert not process.is_alive(pid, started)
    finally:
        os.waitpid(pid, 0)
    assert process.started_at(pid) != pytest.approx(started, abs=1e-6)
