"""`env.difficulty`: which difficulties are wanted, as numbers, fractions and ranges of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tinsmith.errors import ConfigError

_NUMBER = r"\d+(?:\.\d+)?(?:/0*[1-9]\d*)?"
_ITEM = re.compile(rf"({_NUMBER})(?:-({_NUMBER}))?")
_LAST = re.compile(rf"(?<![\w.])-?{_NUMBER}$")


@dataclass(frozen=True)
class Difficulties:
    ranges: tuple[tuple[Fraction, Fraction], ...]

    @classmethod
    def parse(cls, wanted: str) -> Difficulties:
        """`0/8,1/8`, `9-10` or `5`: single values and ranges, separated by commas."""
        found = [_ITEM.fullmatch(item.strip()) for item in wanted.split(",")]
        if not all(found):
            raise ConfigError(
                "env.difficulty must be all, or numbers and ranges separated by commas, such as 0/8,1/8 or "
                f"9-10 (got {wanted!r})."
            )
        bounds = [(item[1], item[2] or item[1]) for item in found if item]
        return cls(tuple((_fraction(low), _fraction(high)) for low, high in bounds))

    def __contains__(self, value: Any) -> bool:
        """Whether a row's difficulty is wanted: a number, `1/8`, or text that ends in one (`Level 5`)."""
        last = _LAST.search(str(value).strip())
        if last is None:
            return False
        number = _fraction(last.group())
        return any(low <= number <= high for low, high in self.ranges)


def _fraction(number: str) -> Fraction:
    above, _, below = number.partition("/")
    return Fraction(above) / int(below or 1)
