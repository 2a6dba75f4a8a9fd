"""Whatever a model writes, the part of grading that runs in the trainer returns a verdict and raises nothing."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tinsmith.envs.grading.compare import Question, decide
from tinsmith.envs.grading.extract import extract
from tinsmith.envs.grading.mutants import mutants
from tinsmith.envs.grading.normal import normalise
from tinsmith.envs.grading.plain import plain

PIECES = [
    "\\boxed{", "\\fbox", "{", "}", "\\{", "\\}", "\\frac", "\\sqrt", "\\text{", "$", "$$", "\\(", "\\)", "\\[", "\\]",
    "####", "answer is", "Answer:", "</think>", "1", "23", ",", ".", "-", "+", "/", "^", "_", "%", "\\%", "=", "<",
    " ", "\n", "x", "cm", "e", "½", "²", "√", "π", "−", "(", ")", "[", "]", "|", "!", "\\", "\\times 10^", "and", "ﷺ",
]  # fmt: skip
replies = st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=60)
numbers = st.fractions(max_denominator=10**6)


@given(replies, replies)
def test_anything_is_decided_or_asked(reply: str, expected: str) -> None:
    found = extract(reply)
    if found is not None:
        assert found.text
        assert isinstance(decide(found.text, expected), bool | Question)


@given(replies)
def test_an_answer_is_its_own(answer: str) -> None:
    if normalise(answer):
        assert decide(answer, answer) is True


@given(numbers)
def test_a_fraction_is_read_as_it_was_written(value: Fraction) -> None:
    for text in (f"{value.numerator}/{value.denominator}", latex(value)):
        read = plain(normalise(text))
        assert read is not None
        assert read.value == value


@given(numbers, numbers)
def test_fractions_are_right_only_when_equal(one: Fraction, other: Fraction) -> None:
    assert decide(latex(one), latex(other)) is (one == other)


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_whole_numbers_with_and_without_separators(one: int, other: int) -> None:
    assert decide(f"{one:,}", str(other)) is (one == other)


@given(numbers | st.decimals(-1000, 1000, places=3).map(str))
def test_mutants_of_a_number_are_refused(value: Fraction | str) -> None:
    answer = value if isinstance(value, str) else latex(value)
    for kind, mutant in mutants(answer, ["12345678"]):
        assert decide(mutant, answer) is False, (kind, mutant)


def latex(value: Fraction) -> str:
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
