"""Watches a run from its directory: the live terminal view, or a line a step without a terminal."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live

from tinsmith.cli.lines import LineView
from tinsmith.cli.panel import Body, Frame, draw
from tinsmith.cli.summary import exit_code, reference, summary
from tinsmith.cli.terminal import Keys, keyboard
from tinsmith.runs import process
from tinsmith.runs.follow import RunFollower, Snapshot
from tinsmith.runs.manager import record_kill

FRAME_SECONDS = 0.25
COUNTDOWN_SECONDS = 3.0

ASK_STOP = "stop the run? y saves and stops · n goes on"
STOPPING = "saving and stopping · Ctrl-C again stops at once, without saving"


def watch(run_dir: Path, *, child: bool = True, pid: int | None = None) -> int:
    """Show the run until it is over or the viewer leaves; returns the run's exit code (0 after leaving).

    `child`: this command started the run, so Ctrl-C stops it; otherwise Ctrl-C only leaves.
    `pid` is the process just started: records of an earlier attempt are then not taken for its own.
    """
    console = Console(highlight=False)
    interactive = sys.stdout.isatty() and not console.is_dumb_terminal
    follower = RunFollower(run_dir, pid=pid)
    control = Control(follower, child=child, interactive=interactive)
    with signals(control), keyboard() if interactive else nullcontext(Keys(None)) as keys:
        if interactive:
            snapshot = _watch_live(console, follower, control, keys)
        else:
            since = None if child else time.time()
            snapshot = _watch_lines(follower, control, keys, LineView(since, follower.rollouts))
    if control.left and not snapshot.status.over:
        name = reference(run_dir)
        print(f"{run_dir.name} goes on. Watch it: tinsmith runs watch {name}")
        print(f"Stop it:  tinsmith runs stop {name}")
        return 0
    print("\n".join(summary(snapshot, follower.reader)), flush=True)
    recorded = snapshot.info.exit_code if snapshot.info else None
    return recorded or exit_code(snapshot.status)


def _watch_live(console: Console, follower: RunFollower, control: Control, keys: Keys) -> Snapshot:
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            snapshot = follower.poll()
            live.update(draw(snapshot, _frame(console, follower, control, snapshot)), refresh=True)
            if snapshot.status.over or control.left:
                return snapshot
            control.press(keys.pressed(wait_seconds=FRAME_SECONDS))
            control.tick(time.monotonic())


def _watch_lines(follower: RunFollower, control: Control, keys: Keys, view: LineView) -> Snapshot:
    while True:
        snapshot = follower.poll()
        for line in view.update(snapshot):
            print(line, flush=True)
        if snapshot.status.over or control.left:
            return snapshot
        keys.pressed(wait_seconds=FRAME_SECONDS)
        control.tick(time.monotonic())


def _frame(console: Console, follower: RunFollower, control: Control, snapshot: Snapshot) -> Frame:
    shown = snapshot.steps or snapshot.evaluations
    return Frame(
        width=console.width,
        height=console.height,
        now=time.time(),
        body=control.body,
        rollouts=follower.rollouts(shown[-1]["step"]) if shown else (),
        log=follower.reader.log(tail=console.height) if control.body is Body.LOG else (),
        prompt=control.prompt,
    )


class Control:
    """What keys and Ctrl-C do. Pure but for asking the run's process to stop, or ending it."""

    def __init__(self, follower: RunFollower, *, child: bool, interactive: bool) -> None:
        self._follower = follower
        self._child = child
        self._interactive = interactive
        self._interrupts = 0
        self._unhandled = 0
        self._deadline: float | None = None
        self._asking = False
        self._stopping = False
        self.body = Body.EXAMPLES
        self.left = False

    @property
    def prompt(self) -> str:
        """What stands in place of the list of keys."""
        if self._stopping:
            return STOPPING
        if self._deadline is not None:
            return f"saving and stopping in {COUNTDOWN_SECONDS:.0f} s · n goes on · Ctrl-C again stops at once"
        return ASK_STOP if self._asking else ""

    def press(self, key: str | None) -> None:
        """One key; a question on screen takes it first."""
        if key is None:
            return
        if self._asking or self._deadline is not None:
            self._answer(key)
        elif key == "q":
            self.left = True
        elif key == "s" and not self._stopping:
            self._asking = True
        elif key in ("l", "r"):
            wanted = Body.LOG if key == "l" else Body.ROLLOUTS
            self.body = Body.EXAMPLES if self.body is wanted else wanted

    def interrupt(self) -> None:
        """Note a Ctrl-C; a signal handler may do no more."""
        self._unhandled += 1

    def leave(self) -> None:
        """The terminal is being closed: go without a word to the run."""
        self.left = True

    def _interrupted(self, now: float) -> None:
        """The first Ctrl-C saves and stops (after a moment to think better of it), the second ends."""
        if not self._child:
            self.left = True
            return
        self._interrupts += 1
        if self._interrupts > 1 or self._stopping:
            self._end()
        elif self._interactive:
            self._deadline = now + COUNTDOWN_SECONDS
        else:
            self._stop()

    def tick(self, now: float) -> None:
        """Act on Ctrl-C, and carry out the stop whose time to think has passed."""
        while self._unhandled:
            self._unhandled -= 1
            self._interrupted(now)
        if self._deadline is not None and now >= self._deadline:
            self._stop()

    def _answer(self, key: str) -> None:
        if key in ("y", "\r", "\n"):
            self._stop()
        elif key in ("n", "q"):
            self._asking, self._deadline, self._interrupts = False, None, 0

    def _stop(self) -> None:
        self._asking, self._deadline, self._stopping = False, None, True
        if known := self._follower.process():
            process.interrupt(*known)

    def _end(self) -> None:
        self._asking, self._deadline, self._stopping = False, None, True
        known = self._follower.process()
        if known and process.kill(*known):
            process.wait(*known, seconds=10.0)
            record_kill(
                self._follower.directory, "ended at once; it goes on from its last checkpoint"
            )


@contextmanager
def signals(control: Control) -> Iterator[None]:
    """Ctrl-C and a closing terminal go to the control while the view is on."""

    def interrupted(_number: int, _frame: FrameType | None) -> None:
        control.interrupt()

    def ended(_number: int, _frame: FrameType | None) -> None:
        control.leave()

    handlers = {signal.SIGINT: interrupted, signal.SIGTERM: ended, signal.SIGHUP: ended}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
