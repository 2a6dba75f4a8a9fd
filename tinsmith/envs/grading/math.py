"""Mathematical answers: extracted from the reply, compared cheaply where possible, else by algebra in a worker."""

from __future__ import annotations

import asyncio

from tinsmith.envs.grading.compare import Question, decide
from tinsmith.envs.grading.extract import extract
from tinsmith.envs.grading.grade import Grade
from tinsmith.envs.grading.pool import Kind, Pool, shared_pool

SHOWN = 500  # characters of an answer that are recorded
ALGEBRA = Kind(
    prepare="tinsmith.envs.grading.judge:prepare",
    package="math_verify",
    needed='grading mathematics needs the package math-verify. Type: pip install "tinsmith[math]"',
)


async def grade_math(reply: str, expected: str, pool: Pool | None = None) -> Grade:
    """Whether the reply's answer is the expected one, by the rules in docs/grading.md."""
    found = extract(reply)
    if found is None:
        return Grade(correct=False, well_formed=False, answer="")
    decided = decide(found.text, expected)
    note = ""
    if isinstance(decided, Question):
        pool = pool or shared_pool(ALGEBRA)
        said = await asyncio.wrap_future(pool.submit((decided.answer, decided.expected)))
        decided, note = bool(said.answer), said.note
    return Grade(correct=decided, well_formed=True, answer=found.text[:SHOWN], note=note)
