"""Rows of a table: bounded, harmless, telling."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.rl.monitors.conftest import rollout
from tinsmith.rl.monitors.samples import TEXT, shorten, to_sample


def test_a_rollout_as_a_row():
    sample = to_sample(rollout(member=3))
    assert (sample.problem, sample.member) == ("sum-3", 3)
    assert (sample.prompt, sample.reply) == ("What is 1 + 1?", "2")
    assert (sample.answer, sample.expected) == ("2", "2")
    assert (sample.reward, sample.advantage, sample.ended) == (1.0, 0.25, "stop")


def test_a_failed_rollout_says_why():
    sample = to_sample(rollout(reward=None, advantage=None, turns=[], error="timed out"))
    assert (sample.reward, sample.reply, sample.ended) == (None, "", "timed out")


def test_of_several_turns_the_last_answer_counts():
    turns = [
        {"role": "prompt", "text": "Guess."},
        {"role": "assistant", "text": "1", "logs": {"answer": "1", "expected": "3"}},
        {"role": "prompt", "text": "Again."},
        {"role": "assistant", "text": "3", "logs": {"answer": "3"}},
    ]
    sample = to_sample(rollout(turns=turns))
    assert sample.reply == "1\nAgain.\n3"
    assert (sample.answer, sample.expected) == ("3", "3")


def test_of_a_long_text_both_ends_stay():
    text = shorten("begin" + "x" * 10 * TEXT + "end", TEXT)
    assert text.startswith("beginx")
    assert text.endswith("xend")
    assert len(text) <= TEXT + 3


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=200), st.integers(3, 50))
def test_any_text_can_be_sent_and_hides_nothing(text, most):
    short = shorten(text, most)
    assert len(short) <= most + 3
    json.dumps(short, ensure_ascii=False).encode("utf-8")
    assert not {"\x1b", "\x02", "\x00", "\r", "\u202e", "\u2028", "\x85"} & set(short)
