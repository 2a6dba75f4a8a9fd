"""Whole-number answers: the last number in the reply counts.

A reply is right when its last number equals the expected one: `85`, `47 + 38 = 85` and `It is 85.`
all answer 85. Thousands may be separated by commas and a fraction of zero (`85.0`) is ignored. A
reply without any number is not well formed and earns nothing.
"""

from __future__ import annotations

import re
from decimal import Decimal

from tinsmith.envs.grading.grade import Grade

# A minus sign belongs to the number unless it stands between two terms, as in 90-6.
_NUMBER = re.compile(r"(?:(?<![\w)])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")


def last_number(text: str) -> Decimal | None:
    """The last number written in the text."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


async def grade_integer(reply: str, expected: str) -> Grade:
    number = last_number(reply)
    if number is None:
        return Grade(correct=False, well_formed=False, answer="")
    whole = number == number.to_integral_value()
    shown = f"{number:.0f}" if whole else str(number)
    return Grade(correct=number == Decimal(expected), well_formed=True, answer=shown)
