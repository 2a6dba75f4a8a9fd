"""The table of futures: completions come in order, a bounded number at a time, each once."""

from __future__ import annotations

from tinsmith.service.futures import COMPLETIONS_AT_ONCE, FutureTable, LogKey
from tinsmith.service.ops import Outcome

KEY = LogKey("s:sample:0", 0)


async def test_many_completions_come_in_portions_and_none_twice() -> None:
    table = FutureTable()
    count = 2 * COMPLETIONS_AT_ONCE + 5
    for number in range(count):
        table.complete(KEY, f"s:sample:0/{number}", Outcome.json({}))
    heard: list[str] = []
    cursor, sizes = 0, []
    while len(heard) < count:
        found, cursor = await table.completions(KEY, cursor, 1.0)
        sizes.append(len(found))
        heard += [one.future_id for one in found]
    assert sizes == [COMPLETIONS_AT_ONCE, COMPLETIONS_AT_ONCE, 5]
    assert heard == [f"s:sample:0/{number}" for number in range(count)]
    assert await table.completions(KEY, cursor, 0.0) == ([], cursor)


async def test_an_answer_that_was_lost_is_given_again() -> None:
    table = FutureTable()
    for number in range(COMPLETIONS_AT_ONCE + 1):
        table.complete(KEY, f"s:sample:0/{number}", Outcome.json({}))
    first, cursor = await table.completions(KEY, 0, 1.0)
    assert (await table.completions(KEY, 0, 1.0)) == (first, cursor)
    assert len((await table.completions(KEY, cursor, 1.0))[0]) == 1
