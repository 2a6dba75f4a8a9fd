"""Kinds of work for the workers that are tested."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NoReturn

from tinsmith.envs.grading.worker import untimed

Work = Callable[[Any], Any]


def echo() -> Work:
    return lambda question: question


def chatter() -> Work:
    def work(question: Any) -> Any:
        print("printed", flush=True)
        os.write(1, b'{"answer": "written"}\n')
        os.write(2, b"warned\n")
        return question

    return work


def refuse() -> Work:
    def work(question: Any) -> Any:
        if question is None:
            raise LookupError("nothing was asked")
        return question

    return work


def hoard() -> Work:
    return lambda question: question or len(bytes(4 << 30))


def look_up() -> Work:
    def work(question: str) -> Any:
        with untimed():
            if question.startswith("long"):
                burn(0.5)
        return question if "stuck" not in question else burn(60)

    return work


def cannot_import() -> NoReturn:
    raise ModuleNotFoundError("No module named 'not_there'")


def burn(seconds: float) -> None:
    """Uses that much processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
