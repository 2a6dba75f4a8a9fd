"""Puzzles that `reasoning_gym` makes from seeds, without a network, scored by each task's own rule."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinsmith.envs.datasets.split import leave_out, question_key, share
from tinsmith.envs.datasets.text import last_boxed, same_question
from tinsmith.envs.grading.grade import Grade
from tinsmith.envs.grading.pool import Kind, Limits, shared_pool
from tinsmith.envs.problem import Row
from tinsmith.errors import ConfigError, one_of

PROMPT = "Write your final answer between <answer> and </answer>."
USUAL_SIZE = 2000  # training problems
LARGEST_SIZE = 1_000_000  # problem i of a set comes from its seed + i, so sets lie this far apart
ANNOUNCED = 500  # problems from which on the making is announced, as some tasks take long
LONGEST = 20_000  # characters of an answer that are scored
KEY = "reasoning_gym#"  # begins what the grader finds a problem by
SCORING = Kind(
    prepare="tinsmith.envs.gym_scores:prepare",
    package="reasoning_gym",
    needed="env.dataset=reasoning_gym:... needs the package reasoning-gym: "
    'pip install "tinsmith[reasoning-gym]".',
    limits=Limits(processor_seconds=5.0, wall_seconds=30.0, memory_bytes=2 << 30),
)


def parse_args(text: str) -> dict[str, Any]:
    """`min_terms=2,max_terms=3`, or a JSON object, as the task's settings."""
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise ConfigError(f"env.task_args is not a JSON object: {error}.") from error
    found: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise ConfigError(
                "env.task_args must be name=value,name=value or a JSON object, such as "
                f"max_terms=3,max_digits=2 (got {text!r})."
            )
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text


def rows(
    task: str, task_args: str, seed: int, limit: int | None, held_out: float
) -> tuple[list[Row], list[Row]]:
    """Training and held-out problems, from seeds apart; a question that is held out is not trained on."""
    from tinsmith.envs.gym_problems import generate

    size = USUAL_SIZE if limit is None else limit
    if size > LARGEST_SIZE:
        raise ConfigError(
            f"env.limit must be at most {LARGEST_SIZE} for reasoning_gym (got {size})."
        )
    SCORING.require()
    if size >= ANNOUNCED:
        print(f"reasoning_gym: making {size} problems of {task} ...", file=sys.stderr, flush=True)
    first = 2 * LARGEST_SIZE * seed
    sets = [(first, size), (first + LARGEST_SIZE, share(size, held_out))]
    made = generate(task, parse_args(task_args), sets)
    train, kept = (_once(task, *where, made_S) for where, made_S in zip(sets, made, strict=True))
    train = leave_out(train, {question_key(row.id) for row in kept})
    if not train:
        raise ConfigError(
            f"reasoning_gym:{task} has too few different problems to hold some of them out. Set env.task_args "
            "so that there are more, or another env.held_out."
        )
    return train, kept


def _once(task: str, seed: int, size: int, made_S: Sequence[tuple[str, str]]) -> list[Row]:
    """Problems of one seed, each question once."""
    found: dict[str, Row] = {}
    for index, (question, answer) in enumerate(made_S):
        row_id = f"reasoning_gym/{task}/{same_question(question)[:16]}"
        key = KEY + json.dumps([seed, size, index])
        found.setdefault(row_id, Row(row_id, question, answer, key))
    return list(found.values())


def make(task: str, args: dict[str, Any], seed: int, size: int) -> Any:
    """The package's own dataset, or a sentence about a task or setting that it does not have."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise ConfigError(one_of("the task of env.dataset=reasoning_gym:", task, sorted(DATASETS)))
    known = [
        f.name for f in dataclasses.fields(DATASETS[task][1]) if f.name not in ("seed", "size")
    ]
    for name in args:
        if name not in known:
            raise ConfigError(one_of(f"a setting of {task} in env.task_args", name, known))
    try:
        return reasoning_gym.create_dataset(task, **args, seed=seed, size=size)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"reasoning_gym:{task} refuses env.task_args: {error}.") from error


def read_answer(reply: str) -> str:
    """What stands last between answer tags, else in a box, else the whole reply."""
    said = reply.rpartition("</think>")[2]
    _, opened, rest = said.rpartition("<answer>")
    if opened:
        return rest.partition("</answer>")[0].strip()
    return (last_boxed(said) or said).strip()


@dataclass(frozen=True)
class GymGrader:
    """Asks the task's own scorer, in a worker, as some scorers evaluate what they are given."""

    task: str
    task_args: str = ""

    async def __call__(self, reply: str, expected: str) -> Grade:
        answer = read_answer(reply)
        if not answer:
            return Grade(correct=False, well_formed=False, answer="", score=0.0)
        place: Sequence[int] | str = (
            json.loads(expected.removeprefix(KEY)) if expected.startswith(KEY) else expected
        )
        question = [self.task, parse_args(self.task_args), place, answer[:LONGEST]]
        said = await asyncio.wrap_future(shared_pool(SCORING).submit(question))
        score, note = said.answer or (0.0, "the scorer took too long or ended")
        score = min(max(score, 0.0), 1.0)
        return Grade(score >= 1, well_formed=True, answer=answer[:500], note=note, score=score)
