"""watch(): a real process in a real (pseudo-)terminal, its keys, Ctrl-C, and the life without one."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tinsmith.records.run import RunStatus, read_run
from tinsmith.runs import process
from tinsmith.runs.manager import load

ROOT = Path(__file__).parents[3]
TRAINER = Path(__file__).with_name("pretend_trainer.py")
VIEWER = (
    "import sys, pathlib; from tinsmith.cli.live import watch;"
    "sys.exit(watch(pathlib.Path(sys.argv[1]), child=sys.argv[2] == 'child', pid=int(sys.argv[3]) or None))"
)
PATIENCE = 30.0


class Viewer:
    """The view on a pseudo-terminal: type into it, wait for words on its screen."""

    def __init__(self, arguments: list[str]) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, 120))
        self.modes = termios.tcgetattr(slave)
        self._slave = slave
        code = f"import os, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);{VIEWER}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )
        self.output = ""

    def wait_for(self, words: str) -> None:
        """Read until the words were drawn since the last call."""
        before, deadline = len(self.output), time.monotonic() + PATIENCE
        while words not in self.output[before:]:
            assert self._read(deadline), f"{words!r} never came:\n{self.output}"

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def close(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            self._read(deadline)
        while select.select([self.master], [], [], 0.0)[0]:
            self._read(deadline)
        code = self.process.returncode
        assert termios.tcgetattr(self._slave)[3] == self.modes[3], "the terminal's mode is restored"
        return code

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], 0.1)
        if ready:
            self.output += os.read(self.master, 1 << 16).decode(errors="replace")
        return time.monotonic() < deadline

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self._slave)


@contextmanager
def trainer(directory: Path, behaviour: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "logs" / "latest" / "train.log"
    pid = process.spawn(
        [sys.executable, str(TRAINER), str(directory), behaviour], directory=ROOT, log=log
    )
    started = process.started_at(pid) or 0.0
    try:
        yield pid
    finally:
        process.kill(pid, started)
        process.wait(pid, started, seconds=10)


@contextmanager
def viewer(directory: Path, role: str, pid: int) -> Iterator[Viewer]:
    shown = Viewer([str(directory), role, str(pid)])
    try:
        yield shown
    finally:
        shown.end()


def watch_lines(directory: Path, pid: int, role: str = "child") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", VIEWER, str(directory), role, str(pid)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


# ── on a terminal ────────────────────────────────────────────────────────────────────────────


def test_q_leaves_the_run_going(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, "waits", monkeypatch) as pid, viewer(directory, "child", pid) as view:
        view.wait_for("step 1/4")
        view.type("q")
        assert view.close() == 0
        assert "calm-anvil goes on. Watch it: tinsmith runs watch calm-anvil" in view.output
        assert load(directory).info.status is RunStatus.RUNNING


def test_keys_switch_between_log_and_rollouts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, "waits", monkeypatch) as pid, viewer(directory, "child", pid) as view:
        view.wait_for("wrong:")
        (directory / "logs" / "latest" / "train.log").write_text("hello from the log\n")
        view.type("l")
        view.wait_for("hello from the log")
        view.type("r")
        view.wait_for("−0.75  75")
        view.type("r")
        view.wait_for("wrong:")


def test_s_asks_and_then_saves_and_stops(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, "waits", monkeypatch) as pid, viewer(directory, "child", pid) as view:
        view.wait_for("step 1/4")
        view.type("s")
        view.wait_for("stop the run?")
        view.type("n")
        view.wait_for("q leave")
        view.type("s")
        view.wait_for("stop the run?")
        view.type("y")
        assert view.close() == 130
        assert "calm-anvil stopped at step 1/4: asked to stop" in view.output
        assert re.search(r"resume   tinsmith train .* log_path=", view.output)
        assert read_run(directory).status is RunStatus.STOPPED


def test_ctrl_c_saves_and_stops(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, "waits", monkeypatch) as pid, viewer(directory, "child", pid) as view:
        view.wait_for("step 1/4")
        view.type("\x03")
        view.wait_for("saving and stopping in 3 s")
        view.type("n")
        view.wait_for("q leave")
        view.type("\x03")
        view.wait_for("saving and stopping in 3 s")
        view.type("y")
        assert view.close() == 130
        assert (directory / "checkpoints.jsonl").exists()


def test_a_second_ctrl_c_ends_the_run_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, "deaf", monkeypatch) as pid, viewer(directory, "child", pid) as view:
        view.wait_for("step 1/4")
        view.type("\x03")
        view.wait_for("saving and stopping")
        view.type("\x03")
        assert view.close() == 130
        assert process.started_at(pid) is None
        assert "ended at once" in read_run(directory).message


def test_ctrl_c_only_leaves_a_run_that_is_merely_watched(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, "waits", monkeypatch) as pid:
        with viewer(directory, "child", pid) as first:
            first.wait_for("step 1/4")
        with viewer(directory, "visitor", 0) as view:
            view.wait_for("step 1/4")
            view.type("\x03")
            assert view.close() == 0
        assert load(directory).info.status is RunStatus.RUNNING


def test_closing_the_terminal_leaves_the_run_going(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, "waits", monkeypatch) as pid, viewer(directory, "child", pid) as view:
        view.wait_for("step 1/4")
        view.process.send_signal(signal.SIGHUP)
        assert view.close() == 0
        assert load(directory).info.status is RunStatus.RUNNING


# ── without one ──────────────────────────────────────────────────────────────────────────────


def test_lines_without_a_terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, "steps", monkeypatch) as pid:
        done = watch_lines(directory, pid)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" |")[0] for line in lines if line.startswith("step")] == [
        f"step {n}/4" for n in range(1, 5)
    ]
    assert "reward 0.20 → 0.80 in 4 steps (training problems, first and last step)" in lines
    assert "\x1b" not in done.stdout


def test_ctrl_c_without_a_terminal_saves_and_stops(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, "waits", monkeypatch) as pid:
        view = subprocess.Popen(
            [sys.executable, "-c", VIEWER, str(directory), "child", str(pid)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert view.stdout is not None
        while not view.stdout.readline().startswith("step 1/4"):
            assert view.poll() is None
        view.send_signal(signal.SIGINT)
        rest, _ = view.communicate(timeout=PATIENCE)
    assert view.returncode == 130
    assert "calm-anvil stopped at step 1/4: asked to stop" in rest


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("fails", "calm-anvil failed at step 1/4: the service has gone away."),
        ("vanishes", "calm-anvil is lost at step 1/4: its process vanished without finishing"),
        ("mute", "calm-anvil ended before its first record."),
    ],
)
def test_a_bad_end_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, said: str
) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, behaviour, monkeypatch) as pid:
        done = watch_lines(directory, pid)
    assert done.returncode == 1
    assert said in done.stdout
    assert "train.log" in done.stdout
    assert ("I cannot begin" in done.stdout) == (behaviour == "mute")
    assert done.stderr == ""


def test_the_end_of_an_earlier_attempt_is_not_taken_for_this_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, "fails", monkeypatch) as pid:
        assert watch_lines(directory, pid).returncode == 1
    with trainer(directory, "steps", monkeypatch) as pid:
        done = watch_lines(directory, pid)
    assert done.returncode == 0
    assert "failed" not in done.stdout


def test_watching_a_finished_run_shows_its_last_words(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = home / "runs" / "calm-anvil"
    with trainer(directory, "steps", monkeypatch) as pid:
        watch_lines(directory, pid)
        done = watch_lines(directory, 0, role="visitor")
    assert done.returncode == 0
    assert "step 1/4" not in done.stdout
    assert "reward 0.20 → 0.80 in 4 steps" in done.stdout
