"""Which problems are held out: by a digest of the question, so that adding rows moves none of the others."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from tinsmith.envs.problem import Row


def share(total: int, held_out: float) -> int:
    """How many of `total` are held out: up to 1 it is a share of them, above 1 a number of them."""
    if held_out > 1:
        return min(int(held_out), total)
    return min(max(1, int(total * held_out)), total) if held_out > 0 else 0


def hold_out(rows: Sequence[Row], held_out: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Rows for training and rows held out, both in the order given."""
    if held_out <= 0 or not rows:
        return list(rows), []
    if held_out > 1:
        chosen = set(_first(rows, share(len(rows), held_out), f"{seed}/held_out"))
    else:
        limit = int(held_out * 2**64)
        chosen = {row.id for row in rows if lot(row.id, f"{seed}/held_out") < limit}
        # Of very few rows, chance may take none: one is held out all the same.
        chosen = chosen or set(_first(rows, 1, f"{seed}/held_out"))
    return [r for r in rows if r.id not in chosen], [r for r in rows if r.id in chosen]


def take(rows: Sequence[Row], count: int | None, seed: int) -> list[Row]:
    """At most `count` of the rows, in the order given."""
    if count is None or count >= len(rows):
        return list(rows)
    chosen = set(_first(rows, count, f"{seed}/limit"))
    return [row for row in rows if row.id in chosen]


def leave_out(rows: Sequence[Row], ids: Collection[str]) -> list[Row]:
    """The rows whose questions are not among those of other rows, by the last part of their ids."""
    return [row for row in rows if question_key(row.id) not in ids]


def question_key(row_id: str) -> str:
    return row_id.rpartition("/")[2]


def _first(rows: Sequence[Row], count: int, lottery: str) -> list[str]:
    return sorted((row.id for row in rows), key=lambda row_id: lot(row_id, lottery))[:count]


def lot(row_id: str, lottery: str) -> int:
    """A number below 2**64 that the question and the lottery alone decide."""
    drawn = hashlib.sha256(f"{lottery}/{question_key(row_id)}".encode()).digest()
    return int.from_bytes(drawn[:8], "big")
