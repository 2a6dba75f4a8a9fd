"""Sums, differences and products of two numbers; a pair that is held out is never trained on in any form."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence

from tinsmith.envs.datasets.split import lot, share
from tinsmith.envs.problem import Row

LARGEST = 99
HELD_OUT_SHARE = 0.1
HELD_OUT_SEED = (
    20240229  # with env.seed=0, the sums that the embedded model never saw in its making
)
MOST = 250_000  # problems; of a larger range so many are drawn
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


def question(a: int, b: int, sign: str = "+") -> str:
    return f"What is {a} {sign} {b}?"


def rows(
    seed: int,
    *,
    largest: int = LARGEST,
    smallest: int = 0,
    operators: Sequence[str] = ("+",),
    held_out: float = HELD_OUT_SHARE,
) -> tuple[list[Row], list[Row]]:
    """Training and held-out problems, shuffled. Both orders of a pair, with every sign, fall on one side."""
    size = largest - smallest + 1
    if size * size * len(operators) > MOST:
        return _drawn(seed, largest, smallest, operators, held_out)
    held = held_out_pairs(seed, largest=largest, smallest=smallest, held_out=held_out)
    numbers = range(smallest, largest + 1)
    every = [(a, b, sign) for sign in operators for a in numbers for b in numbers]
    random.Random(seed).shuffle(every)
    train = [_row(*problem) for problem in every if problem[:2] not in held]
    return train, [_row(*problem) for problem in every if problem[:2] in held]


def held_out_pairs(
    seed: int = 0,
    *,
    largest: int = LARGEST,
    smallest: int = 0,
    held_out: float = HELD_OUT_SHARE,
) -> frozenset[tuple[int, int]]:
    """The pairs kept for evaluation; with (a, b) also (b, a)."""
    pairs = [(a, b) for a in range(smallest, largest + 1) for b in range(a, largest + 1)]
    chosen = random.Random(HELD_OUT_SEED + seed).sample(pairs, share(len(pairs), held_out))
    return frozenset(chosen) | frozenset((b, a) for a, b in chosen)


def _drawn(
    seed: int, largest: int, smallest: int, operators: Sequence[str], held_out: float
) -> tuple[list[Row], list[Row]]:
    """The same of a range too large to list: problems drawn at random, pairs held out by lot."""
    size = largest - smallest + 1
    train: list[Row] = []
    held: list[Row] = []
    held_share = held_out if held_out <= 1 else held_out / MOST
    for number in random.Random(seed).sample(range(size * size * len(operators)), MOST):
        at, pair = divmod(number, size * size)
        a, b = smallest + pair // size, smallest + pair % size
        key = f"{min(a, b)},{max(a, b)}"
        side = held if lot(key, f"{seed}/held_out") < held_share * 2**64 else train
        side.append(_row(a, b, operators[at]))
    return train, held


def _row(a: int, b: int, sign: str) -> Row:
    return Row(f"arithmetic/{a}{sign}{b}", question(a, b, sign), str(OPERATORS[sign](a, b)))
