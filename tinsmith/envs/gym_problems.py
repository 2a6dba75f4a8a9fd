"""Problems of reasoning_gym, made in a process with a fixed hash seed, as some tasks depend on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tinsmith.envs.grading.pool import ENVIRONMENT, command
from tinsmith.envs.grading.worker import private_stdout
from tinsmith.errors import ConfigError, RunError


def generate(
    task: str, args: dict[str, Any], sets: Sequence[tuple[int, int]]
) -> list[list[tuple[str, str]]]:
    """Questions and answers of each (seed, size); an answer is empty where the task has no model one."""
    done = subprocess.run(
        command("tinsmith.envs.gym_problems:make_problems"),
        input=json.dumps([task, args, list(sets)]).encode(),
        capture_output=True,
        env=ENVIRONMENT,
    )
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise RunError(f"reasoning_gym could not make problems of {task}: {' '.join(reason)}")
    made = json.loads(done.stdout)
    if isinstance(made, str):
        raise ConfigError(made)
    return [[(question, answer) for question, answer in made_S] for made_S in made]


def make_problems() -> None:
    """In a process of its own: reads one request from stdin, writes the problems, or a sentence."""
    task, args, sets = json.loads(sys.stdin.buffer.read())
    out = private_stdout()
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
