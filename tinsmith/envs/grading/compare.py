"""What can be decided without algebra: equal text, words, choices, plain numbers and their units."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tinsmith.envs.grading.normal import LONGEST, normalise, squashed, words
from tinsmith.envs.grading.plain import plain, same


@dataclass(frozen=True)
class Question:
    """What remains to be decided by algebra: are these two LaTeX expressions the same?"""

    answer: str
    expected: str


_CHOICE = re.compile(r"\(?\s?(?:\\text\{)?\(?([A-Ja-j])\)?\}?\s?\)?")
_CHOSEN = re.compile(
    r"(?:option |choice |answer )?(?:\\text\{)?\(?\s?(?:\\text\{)?\(?([A-Ja-j])(?:\)|\}|[.:]|$)(?:.*)",
    re.IGNORECASE | re.DOTALL,
)
_VERDICTS = {"yes", "no", "true", "false"}
_TEXT_UNIT = re.compile(
    r"^(.*[0-9})\]a-z|!])\s?\\text\s?\{([^{}]*)\}\s?(?:\^\s?\{?\s?[0-9]\s?\}?)?$"
)
_WORD_UNIT = re.compile(
    r"^(.*?[0-9})\]!]|.*?\\%)\s?([A-Za-z]{2}[A-Za-z./ ]{0,60}|(?<= )[A-Za-zΩ])\s?(?:\^\s?\{?\s?[0-9]\s?\}?)?$"
)
_DEGREES = re.compile(r"^(.*[0-9})])\s?\^\\circ\s?(?:\\text\{)?\s?([CFK]?)\}?$")
_RELATION = re.compile(r"\\(?:le|ge|ne|in|approx|equiv|subset|subseteq)(?![A-Za-z])|[<>]")
_NAME = re.compile(
    r"\\?[A-Za-z]+(?:_\{?[A-Za-z0-9]+\}?)?(?:\s?\(\s?\\?[A-Za-z](?:\s?,\s?[A-Za-z])*\s?\))?'{0,2}"
)
_BASE = re.compile(
    r"([0-9A-F]+)\s?_\s?\{?\s?(?:\\text\{)?([0-9]{1,2}|two|three|eight|sixteen)\}?\}?"
)
_PROSE = re.compile(r"[A-Za-z '.,!?-]*[A-Za-z]{2}[A-Za-z '.,!?-]*")  # words, no number
_CURRENCY = re.compile(r"\$(?=\s?[0-9.])")
# Words after a number that are no unit.
_NO_UNITS = frozenset(
    {"and", "or", "to", "by", "is", "of", "x", "times", "over", "plus", "minus", "not", "sqrt"}
    | {"hundred", "thousand", "million", "billion", "trillion", "percent", "dozen", "mod", "choose"}
    | {"sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin", "arccos", "arctan"}
)
_ORDINAL = ("th", "st", "nd", "rd")
SHORTEST_UNIT = 3  # letters of a unit that is not in UNITS; shorter ones may be products such as xy

# One name for each spelling of a unit; only units that are both known here can contradict each other.
UNITS: dict[str, str] = {
    spelling: unit
    for unit, spellings in {
        "cm": "cm centimeter centimeters centimetre centimetres",
        "mm": "mm millimeter millimeters millimetre millimetres",
        "km": "km kilometer kilometers kilometre kilometres",
        "m": "m meter meters metre metres",
        "in": "in inch inches",
        "ft": "ft foot feet",
        "yd": "yd yard yards",
        "mi": "mi mile miles",
        "s": "s sec secs second seconds",
        "min": "min mins minute minutes",
        "h": "h hr hrs hour hours",
        "day": "day days",
        "week": "week weeks",
        "month": "month months",
        "year": "yr yrs year years",
        "g": "g gram grams",
        "kg": "kg kilogram kilograms",
        "lb": "lb lbs pound pounds",
        "oz": "oz ounce ounces",
        "L": "l liter liters litre litres",
        "mL": "ml milliliter milliliters millilitre millilitres",
        "dollar": "dollar dollars usd",
        "cent": "cent cents",
        "degree": "degree degrees deg",
        "radian": "radian radians rad",
        "mph": "mph",
        "am": "am a.m. a.m",
        "pm": "pm p.m. p.m",
    }.items()
    for spelling in spellings.split()
}


def decide(answer: str, expected: str) -> bool | Question:
    """Whether the answer is the expected one, or what algebra has to find out."""
    if max(len(answer), len(expected)) > LONGEST:
        return answer.strip() == expected.strip()
    given, wanted = normalise(answer), normalise(expected)
    if not given or not wanted:
        return False
    if squashed(given) == squashed(wanted):
        return True
    for rule in (_choice, _words, _bases):
        decided = rule(given, wanted)
        if decided is not None:
            return decided
    given, wanted = _sides(given, wanted)
    if squashed(given) == squashed(wanted):
        return True
    return _measured(given, wanted)


def _choice(given: str, wanted: str) -> bool | None:
    """A letter as the expected answer: `C`, `(C)` and `C. 12` choose it."""
    right = _CHOICE.fullmatch(wanted)
    if right is None:
        return None
    chosen = _CHOSEN.fullmatch(given)
    if chosen is None:
        return None
    return chosen[1].upper() == right[1].upper()


def _words(given: str, wanted: str) -> bool | None:
    """Words as the expected answer; case, spaces and punctuation do not count."""
    right, said = words(wanted), words(given)
    if not re.search(r"[a-z\u00c0-\uffff]{2}", right) or re.search(
        r"\\(?!text)|[=^<>+*/|]", wanted
    ):
        return None
    if right == said:
        return True
    if right in _VERDICTS:
        return said.split(" ", 1)[0] == right
    if re.search(r"[0-9]", right) or (len(right) <= 3 and "\\text" not in wanted):
        return None  # 5 cm has a number, and xy may be a product
    return False


def _bases(given: str, wanted: str) -> bool | None:
    """Numerals with their base: the base may be left out, and must not differ."""
    ours, theirs = _BASE.fullmatch(given), _BASE.fullmatch(wanted)
    if theirs is None:
        return None
    return (ours[1] if ours else squashed(given)) == theirs[1] and (
        ours is None or ours[2] == theirs[2]
    )


def _sides(given: str, wanted: str) -> tuple[str, str]:
    """Without `x =` when only one of the two has it, or when both have the same."""
    left, right = _equation(given), _equation(wanted)
    if left and right:
        if squashed(left[0]) == squashed(right[0]):
            return left[1], right[1]
        return given, wanted
    if left and not right and not _RELATION.search(wanted):
        return left[1], wanted
    if right and not left and _NAME.fullmatch(right[0]) and not _RELATION.search(given):
        return given, right[1]
    return given, wanted


def _equation(text: str) -> tuple[str, str] | None:
    """The first and the last side of an equation or a chain of them; lists of equations are none."""
    if "=" not in text or _RELATION.search(text) or re.search(r"[,;&]|\\text", text):
        return None
    parts = text.split("=")
    return (parts[0].strip(), parts[-1].strip()) if parts[-1].strip() else None


def _measured(given: str, wanted: str) -> bool | Question:
    """Numbers, perhaps with units, or a question for algebra without the units."""
    given, wanted = _CURRENCY.sub("", given), _CURRENCY.sub("", wanted)
    value, unit = split_unit(given)
    right, right_unit = split_unit(wanted)
    known, right_known = UNITS.get(unit), UNITS.get(right_unit)
    if known and right_known and known != right_known:
        return False
    if unit and not right_unit and plain(wanted) is None and len(unit) == 1:
        value = given  # 3 m may be a product when the expected answer is an expression
    number, target = plain(value), plain(right)
    if number is not None and target is not None:
        return same(number, target)
    if target is not None and _PROSE.fullmatch(value):
        return False
    return Question(value, right)


def split_unit(text: str) -> tuple[str, str]:
    """A quantity as its value and its unit; the unit is empty when there is none."""
    degrees = _DEGREES.match(text)
    if degrees and not re.search(r"\\[a-z]*(?:sin|cos|tan|cot|sec|csc)", text):
        return degrees[1].strip(), "degree"
    for pattern in (_TEXT_UNIT, _WORD_UNIT):
        found = pattern.match(text)
        if found is None:
            continue
        unit = " ".join(found[2].lower().split()).strip(" .") or "?"
        first = unit.split()[0]
        if first in _NO_UNITS or plain(text) is not None:
            return text, ""
        spaced = text[found.start(2) - 1] == " " and len(first) >= SHORTEST_UNIT
        if pattern is _WORD_UNIT and first not in UNITS and first not in _ORDINAL and not spaced:
            return text, ""
        return found[1].strip(), unit
    return text, ""
