"""Wrong answers made from a right one, each certainly wrong, to see whether a grader refuses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from tinsmith.envs.grading.normal import normalise, words
from tinsmith.envs.grading.plain import Plain, plain

GARBAGE = "qwzx vjkq"
# Lists, relations, words and signs of either kind are not changed as if they were one expression.
_MANY = re.compile(
    r"[,;:=<>&_]|\\(?:pm|mp|le|ge|ne|in|cup|cap|text|infty|begin|emptyset|mathbb|%|circ)"
)
_WORDS = re.compile(r"[A-Za-z]{2,}")
_COMMAND = re.compile(r"\\[A-Za-z]+")


def mutants(answer: str, others: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What was done to the answer, and what it became. `others` are answers of other problems."""
    yield "empty", ""
    if words(answer) != GARBAGE:
        yield "garbage", GARBAGE
    text = normalise(answer)
    number = plain(text)
    if number is not None:
        yield from _numbers(number)
    elif _is_one_expression(text):
        yield "off by one", f"{text}+1"
        yield "sign flipped", f"-({text})"
    other = next((other for other in others if _certainly_differs(answer, other)), None)
    if other is not None:
        yield "another's answer", other


def _numbers(number: Plain) -> Iterator[tuple[str, str]]:
    value, step = number.value, number.step or Fraction(1)
    yield "off by one", _written(value + step, number)
    if value != 0:
        yield "sign flipped", _written(-value, number)
    if number.step is None and value.denominator > 1:
        upper, lower = value.numerator, value.denominator
        yield "other fraction", _written(Fraction(upper, lower + 1), number)
        if abs(upper) != lower and upper != 0:
            yield "other fraction", _written(Fraction(lower, upper), number)
    if value.denominator == 1:
        digits = str(abs(value.numerator))
        turned = digits[1:] + digits[:1]
        if int(turned) != int(digits):
            yield "digits shuffled", _written(Fraction(int(turned)), number)


def _written(value: Fraction, like: Plain) -> str:
    """The value as the original was written: with its decimals and its percent sign."""
    sign = "-" if value < 0 else ""
    value, percent = abs(value), "\\%" if like.percent else ""
    if like.step is not None and like.step.numerator == 1 and like.step < 1:
        places = len(str(like.step.denominator)) - 1
        whole = str(round(value * like.step.denominator)).rjust(places + 1, "0")
        return f"{sign}{whole[:-places]}.{whole[-places:]}{percent}"
    if value.denominator == 1:
        return f"{sign}{value.numerator}{percent}"
    return f"{sign}\\frac{{{value.numerator}}}{{{value.denominator}}}{percent}"


def _is_one_expression(text: str) -> bool:
    bare = _COMMAND.sub("", text)
    return (
        not _MANY.search(text) and not _WORDS.search(bare) and not bare.startswith(("(", "[", "\\"))
    )


def _certainly_differs(answer: str, other: str) -> bool:
    """Two plain numbers that are nowhere near each other, or two answers in words."""
    ours, theirs = plain(normalise(answer)), plain(normalise(other))
    if ours is not None and theirs is not None:
        near = {theirs.value, theirs.value * 100, theirs.value / 100}
        return all(abs(ours.value - value) > 1 for value in near)
    in_words = [_WORDS.fullmatch(words(text)) for text in (answer, other)]
    return all(in_words) and words(answer) != words(other)
