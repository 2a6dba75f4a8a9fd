"""Plain numbers: whole, decimal, fraction, mixed, scientific, percentage; compared exactly or by stated precision."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 500  # characters of a plain number
LARGEST_EXPONENT = 400
RELATIVE = Fraction(1, 10**6)
ROUNDABLE_DIGITS = 3  # an expected decimal with fewer significant digits is taken as exact

_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]*)?|\.[0-9]+)"
_SCIENTIFIC = (
    rf"(?P<mantissa>{_DECIMAL})(?:[eE]|\s?(?:\\times|\\cdot|\*|x|X)\s?10\s?\^\s?)"
    r"(?:\{\s?(?P<power>[-+]?[0-9]{1,4})\s?\}|(?P<power2>[-+]?[0-9]{1,4}))"
)
_PART = r"(?:\{{\s?(?P<{0}>-?[0-9]+(?:\.[0-9]+)?)\s?\}}|(?P<{0}_digit>[0-9]))"
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)\s?\$?\s?(?P<inner>[-+]?)(?:"
    rf"{_SCIENTIFIC}"
    rf"|(?:(?P<whole>[0-9]+)(?:\s|\s?\+\s?)?)?\\frac\s?{_PART.format('over')}\s?{_PART.format('under')}"
    rf"|(?:(?P<whole2>[0-9]+)(?: | and ))?(?P<top>{_DECIMAL})\s?/\s?(?P<bottom>{_DECIMAL})"
    rf"|(?P<decimal>{_DECIMAL})"
    r")\s?(?P<percent>(?:\\%)?)"
)
SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip


@dataclass(frozen=True)
class Plain:
    """A number as it was written."""

    value: Fraction  # of a percentage: the number before the sign
    step: Fraction | None  # one unit of the last written digit, when it was written as a decimal
    digits: int  # significant digits written; 0 for what is exact
    percent: bool


def plain(text: str) -> Plain | None:
    """The number that a normalised answer is, or None when it is something else."""
    if not text or len(text) > LONGEST:
        return None
    text = re.sub(r"(?<=[0-9]) ?(?:percent|per cent)$", r"\\%", text)
    scale = 1
    head, _, last = text.rpartition(" ")
    if last.lower() in SCALES and head:
        text, scale = head, SCALES[last.lower()]
    match = _NUMBER.fullmatch(text)
    if match is None or (match["sign"] and match["inner"]):
        return None
    read = _read(match)
    if read is None:
        return None
    value, step, digits = read
    negative = "-" in (match["sign"], match["inner"])
    return Plain(
        (-value if negative else value) * scale,
        None if step is None else step * scale,
        digits,
        bool(match["percent"]),
    )


def _read(match: re.Match[str]) -> tuple[Fraction, Fraction | None, int] | None:
    if match["mantissa"] is not None:
        power = int(match["power"] or match["power2"])
        if abs(power) > LARGEST_EXPONENT:
            return None
        value, step, digits = _decimal(match["mantissa"])
        factor = Fraction(10) ** power
        return value * factor, (step or Fraction(1)) * factor, digits
    if match["decimal"] is not None:
        value, step, digits = _decimal(match["decimal"])
        return (value, step, digits) if step is not None else (value, None, 0)
    if match["top"] is not None:
        whole, top, bottom = match["whole2"], match["top"], match["bottom"]
    else:
        whole = match["whole"]
        top = match["over"] or match["over_digit"]
        bottom = match["under"] or match["under_digit"]
    upper, lower = _decimal(top.lstrip("-"))[0], _decimal(bottom.lstrip("-"))[0]
    if lower == 0 or (whole is not None and (upper >= lower or "." in top or "-" in top + bottom)):
        return None  # 3\frac{5}{2} is a product, not a mixed number
    sign = -1 if top.startswith("-") != bottom.startswith("-") else 1
    return Fraction(whole or 0) + sign * upper / lower, None, 0


def _decimal(text: str) -> tuple[Fraction, Fraction | None, int]:
    """Value, unit of the last digit (None for a whole number) and significant digits."""
    text = text.replace(",", "").replace(" ", "")
    whole, point, part = text.partition(".")
    digits = (whole + part).lstrip("0")
    value = Fraction(int(whole + part or "0"), 10 ** len(part))
    return value, Fraction(1, 10 ** len(part)) if point and part else None, len(digits)


def close(answer: Fraction, expected: Plain, *, answer_step: Fraction | None, exact: bool) -> bool:
    """Whether a number is the expected one. `exact` says that the answer is no decimal.

    A whole number must be met exactly. A fraction is met exactly by a fraction and within one part in
    a million by a decimal. A decimal is met by what equals it, and by an exact or more finely written
    answer within one part in a million, or, when it has three significant digits or more, by one that
    rounds to it.
    """
    if answer == expected.value:
        return True
    gap = abs(answer - expected.value)
    if expected.step is None:
        whole = expected.value.denominator == 1
        return not whole and not exact and gap <= RELATIVE * abs(expected.value)
    finer = exact or (answer_step is not None and answer_step < expected.step)
    if not finer:
        return False
    if expected.digits >= ROUNDABLE_DIGITS:
        return gap <= expected.step / 2
    return gap <= RELATIVE * abs(expected.value)


def same(answer: Plain, expected: Plain) -> bool:
    """Whether two plain numbers agree; a percent sign may be missing, or its hundredth be given."""
    return any(
        close(value, expected, answer_step=step, exact=answer.step is None)
        for value, step in _readings(answer, expected)
    )


def _readings(answer: Plain, expected: Plain) -> list[tuple[Fraction, Fraction | None]]:
    as_written = (answer.value, answer.step)
    if answer.percent == expected.percent:
        return [as_written]
    factor = Fraction(100) if expected.percent else Fraction(1, 100)
    scaled = (answer.value * factor, None if answer.step is None else answer.step * factor)
    if expected.percent:
        return [as_written, scaled]
    # 0.1% is not 0.1, but 25% may stand where 25 was asked for.
    return [as_written, scaled] if abs(expected.value) > 1 else [scaled]
