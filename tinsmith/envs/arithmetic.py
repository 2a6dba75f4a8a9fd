"""Sums of two numbers, split so that no held-out sum was ever trained on, not even turned around."""

from __future__ import annotations

import random

from tinsmith.envs.problem import Row

LARGEST = 99
HELD_OUT_SHARE = 0.1
HELD_OUT_SEED = (
    20240229  # with env.seed=0, the sums that the embedded model never saw in its making
)


def question(a: int, b: int) -> str:
    return f"What is {a} + {b}?"


def rows(seed: int, *, largest: int = LARGEST) -> tuple[list[Row], list[Row]]:
    """Training and held-out sums of 0..largest, shuffled. Both orders of a pair fall on one side."""
    held = held_out_pairs(seed, largest=largest)
    every = [(a, b) for a in range(largest + 1) for b in range(largest + 1)]
    random.Random(seed).shuffle(every)
    train = [_row(a, b) for a, b in every if (a, b) not in held]
    return train, [_row(a, b) for a, b in every if (a, b) in held]


def held_out_pairs(seed: int = 0, *, largest: int = LARGEST) -> frozenset[tuple[int, int]]:
    """The pairs kept for evaluation; with (a, b) also (b, a)."""
    pairs = [(a, b) for a in range(largest + 1) for b in range(a, largest + 1)]
    count = max(1, int(len(pairs) * HELD_OUT_SHARE))
    chosen = random.Random(HELD_OUT_SEED + seed).sample(pairs, count)
    return frozenset(chosen) | frozenset((b, a) for a, b in chosen)


def _row(a: int, b: int) -> Row:
    return Row(f"arithmetic/{a}+{b}", question(a, b), str(a + b))
