"""Scores by the rules of reasoning_gym's tasks, some of which evaluate what they are given. Runs in workers only."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tinsmith.envs.grading.worker import untimed
from tinsmith.envs.gym_guard import forbid_code
from tinsmith.envs.reasoning_gym import make

# What a scorer raises on an answer that it cannot read. Anything else ends the worker, which is replaced.
TROUBLE = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NameError,
    RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip


def prepare() -> Callable[[Any], tuple[float, str]]:
    """Makes the process ready, and returns what answers questions in it."""
    _made("chain_sum", "{}", 0, 1)  # loads the modules that the guard changes
    forbid_code()
    return _score


def _score(question: Any) -> tuple[float, str]:
    """Score and note of [task, its settings, [seed, size, index] or the model answer, the answer given]."""
    task, args, place, answer = question
    with untimed():
        problems, entry = _asked(task, json.dumps(args), place)
    try:
        return float(problems.score_answer(answer, entry)), ""
    except TROUBLE as error:
        return 0.0, f"the scorer could not read it: {type(error).__name__}"


def _asked(task: str, args: str, place: Any) -> tuple[Any, Any]:
    """The task's problems, and the one that was asked."""
    if isinstance(place, str):
        return _made(task, args, 0, 1), {"answer": place, "metadata": {}}
    return _made(task, args, *place[:2]), _entry(task, args, *place)


@lru_cache(maxsize=32)
def _made(task: str, args: str, seed: int, size: int) -> Any:
    return make(task, json.loads(args), seed, size)


@lru_cache(maxsize=256)
def _entry(task: str, args: str, seed: int, size: int, index: int) -> Any:
    return _made(task, args, seed, size)[index]
