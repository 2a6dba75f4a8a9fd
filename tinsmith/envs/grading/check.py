"""Runs right and wrong answers of a dataset's own rows through its grader: right ones must score, wrong ones must not."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tinsmith.envs.grading.grade import Grader
from tinsmith.envs.grading.mutants import mutants

RIGHT = "right answer"
AT_ONCE = 2  # grades in flight, so that a grade's time is its own
NEIGHBOURS = 8  # other rows whose answers are tried
EXAMPLES = 10


class Answered(Protocol):
    """A row: what is expected is what the grader is given, the answer is what a person would write."""

    @property
    def id(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def expected(self) -> str: ...


@dataclass
class Tally:
    graded: int = 0
    as_it_must: int = 0


@dataclass(frozen=True)
class Failure:
    row: str
    kind: str
    reply: str
    expected: str
    note: str


@dataclass
class Report:
    rows: int = 0
    without_answer: int = 0  # rows that have no one right answer to try
    tallies: dict[str, Tally] = field(default_factory=dict)
    slowest_seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.rows > self.without_answer and not self.failures


def sample(rows: Sequence[Answered], limit: int, seed: int = 0) -> list[Answered]:
    """At most `limit` rows, the same ones every time."""
    if len(rows) <= limit:
        return list(rows)
    return random.Random(seed).sample(list(rows), limit)


async def check_rows(
    rows: Sequence[Answered], grade: Grader, replies: Callable[[str], Sequence[str]]
) -> Report:
    """Grade every row's answer and its mutants; `replies` are the ways in which an answer may be given."""
    report = Report(rows=len(rows))
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(row: Answered, kind: str, answer: str, reply: str) -> None:
        async with slots:
            begun = time.perf_counter()
            grade_of_it = await grade(reply, row.expected)
            seconds = time.perf_counter() - begun
        tally = report.tallies.setdefault(kind, Tally())
        tally.graded += 1
        report.slowest_seconds = max(report.slowest_seconds, seconds)
        if grade_of_it.correct == (kind == RIGHT):
            tally.as_it_must += 1
        else:
            report.failures.append(Failure(row.id, kind, reply, row.answer, grade_of_it.note))

    work = []
    for at, row in enumerate(rows):
        if not row.answer:
            report.without_answer += 1
            continue
        others = [rows[(at + 1 + n) % len(rows)].answer for n in range(NEIGHBOURS)]
        tried = [(RIGHT, row.answer), *mutants(row.answer, [o for o in others if o])]
        work += [one(row, kind, ans, reply) for kind, ans in tried for reply in replies(ans)]
    await asyncio.gather(*work)
    report.failures.sort(key=lambda failure: (failure.row, failure.kind, failure.reply))
    return report
