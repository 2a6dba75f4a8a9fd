"""Arithmetic problems: the usual ones stay as they are, other ranges and signs follow the same rules."""

from __future__ import annotations

import hashlib

from tinsmith.envs import MathConfig, arithmetic
from tinsmith.envs.problem import RowSource


def test_the_usual_problems_are_those_the_embedded_model_was_made_for():
    train, held_out = MathConfig().rows("train"), MathConfig().rows("eval")
    assert (len(train), len(held_out)) == (9002, 998)
    listed = "\n".join(f"{r.id} {r.question} {r.answer}" for r in (*train, *held_out))
    assert hashlib.sha256(listed.encode()).hexdigest()[:16] == "729df019b0c28b32"
    first = [RowSource(held_out, None, None, 0).problem(i).problem_id for i in range(3)]
    assert first == ["arithmetic/59+65", "arithmetic/82+59", "arithmetic/51+6"]


def test_signs_and_ranges():
    config = MathConfig(smallest=-5, largest=5, operators=("+", "-", "*"))
    rows = [*config.rows("train"), *config.rows("eval")]
    assert len(rows) == len({row.id for row in rows}) == 3 * 11 * 11
    for row in rows:
        expression = row.question.removeprefix("What is ").removesuffix("?")
        a, sign, b = expression.split(" ")
        assert int(row.answer) == {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](
            int(a), int(b)
        )


def test_a_held_out_pair_is_not_trained_on_with_another_sign():
    def pairs(rows):
        return {tuple(sorted(row.question[8:-1].split(" ")[::2], key=int)) for row in rows}

    config = MathConfig(largest=12, operators=("-", "*"), held_out=20)
    assert not pairs(config.rows("train")) & pairs(config.rows("eval"))
    assert len(pairs(config.rows("eval"))) == 20


def test_a_range_too_large_to_list_is_drawn_from(monkeypatch):
    monkeypatch.setattr(arithmetic, "MOST", 3000)
    train, held_out = arithmetic.rows(0, largest=999, operators=("+", "-"))
    assert len(train) + len(held_out) == 3000
    assert 200 < len(held_out) < 400
    assert (train, held_out) == arithmetic.rows(0, largest=999, operators=("+", "-"))
    assert train != arithmetic.rows(1, largest=999, operators=("+", "-"))[0]


def test_a_limit_takes_some_of_the_training_problems():
    some = MathConfig(limit=10).rows("train")
    assert len(some) == 10
    assert set(some) < set(MathConfig().rows("train"))
    assert MathConfig(limit=10).rows("eval") == MathConfig().rows("eval")
