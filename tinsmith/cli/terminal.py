"""The terminal's side of a view: single keys without Enter, and text made safe to print."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

# C0 and C1 control characters, line separators, and the marks that reorder or hide text.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
# Whole escape sequences go first, so that the letters after the escape do not stay behind.
_ESCAPES = re.compile(
    "\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b[@-Z\\\\-_]"
)


def clean(text: str, width: int | None = None) -> str:
    """Text from a model or a file as one harmless line, cut to `width` characters.

    Escape sequences are dropped and line breaks shown as ⏎. Brackets stay: put the result into
    rich as `Text`, which reads no markup.
    """
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\t", " ").replace("\n", "⏎")
    text = _UNSAFE.sub("", text)
    if width is not None and len(text) > width:
        text = text[: max(width - 1, 0)] + "…"
    return text


class Keys:
    """Reads single key presses; silent when stdin is no terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def pressed(self, *, wait_seconds: float) -> str | None:
        """The next key, or None when none came within `wait_seconds`."""
        if self._descriptor is None:
            # Nothing to read: the wait still paces the caller.
            select.select([], [], [], wait_seconds)
            return None
        ready, _, _ = select.select([self._descriptor], [], [], wait_seconds)
        if not ready:
            return None
        data = os.read(self._descriptor, 32)
        if not data:
            self._descriptor = None  # the terminal has gone
            return None
        # An arrow key arrives as an escape sequence; only plain keys mean something here.
        return None if data.startswith(b"\x1b") else data[:1].decode("latin-1").lower()


@contextmanager
def keyboard() -> Iterator[Keys]:
    """Keys of the controlling terminal, without echo; restores the terminal's mode at the end."""
    if not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield Keys(None)  # no terminal, or another job has it: setting its mode would stop us
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
