"""The grader on its corpus: every verdict as it must be, but for the misses that are listed as such."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.unit.envs.grading.corpus import MISSES, Case, cases
from tinsmith.envs.grading.math import ALGEBRA, grade_math
from tinsmith.envs.grading.pool import Limits, Pool

CASES = cases()
CATEGORIES = sorted({case.category for case in CASES})
CLAIMED = 0.98  # of all pairs, misses included; docs/grading.md has the table


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(ALGEBRA, size=1)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def hasty_pool() -> Iterator[Pool]:
    """For questions that take all the time they are given."""
    pool = Pool(ALGEBRA, size=2, limits=Limits(processor_seconds=0.5))
    yield pool
    pool.close()


async def wrongly_graded(some: list[Case], pool: Pool) -> list[str]:
    grades = await asyncio.gather(*(grade_math(c.reply, c.expected, pool) for c in some))
    return [
        f"{'accepted' if grade.correct else 'refused'} {case.reply[:80]!r} for {case.expected!r} {grade.note}"
        for case, grade in zip(some, grades, strict=True)
        if grade.correct != case.right
    ]


@pytest.mark.parametrize("category", CATEGORIES)
async def test_every_pair_of_a_category(category: str, pool: Pool, hasty_pool: Pool) -> None:
    some = [case for case in CASES if case.category == category and not case.missed]
    assert await wrongly_graded(some, hasty_pool if category == "adversarial" else pool) == []


async def test_the_misses_are_still_misses(pool: Pool) -> None:
    missed = [case for case in CASES if case.missed]
    assert len(await wrongly_graded(missed, pool)) == len(missed) == len(MISSES)


def test_the_corpus_is_as_large_and_as_mixed_as_is_claimed() -> None:
    assert len(CASES) >= 300
    assert len({(case.reply, case.expected) for case in CASES}) == len(CASES)
    assert 1 - len(MISSES) / len(CASES) >= CLAIMED
    right = sum(case.right for case in CASES)
    assert 0.3 < right / len(CASES) < 0.7
