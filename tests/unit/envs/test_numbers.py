"""The rule for whole-number answers."""

from __future__ import annotations

import pytest

from tinsmith.envs.grading.numbers import grade_integer


@pytest.mark.parametrize(
    "reply",
    ["85", " 85\n", "47 + 38 = 85", "It is 85.", "85.0", "**85**", "47 and 38 make 85!", "=85"],
)
async def test_right(reply):
    grade = await grade_integer(reply, "85")
    assert (grade.correct, grade.well_formed, grade.answer) == (True, True, "85")


@pytest.mark.parametrize("reply", ["75", "85 or 86", "-85", "8 5", "85.5", "850", "085 1"])
async def test_wrong_but_readable(reply):
    grade = await grade_integer(reply, "85")
    assert (grade.correct, grade.well_formed) == (False, True)


@pytest.mark.parametrize("reply", ["", "eighty-five", "?", "\n", "٨٥"])
async def test_not_a_number(reply):
    grade = await grade_integer(reply, "85")
    assert (grade.correct, grade.well_formed, grade.answer) == (False, False, "")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("1,234", "1234"),
        ("-7", "-7"),
        ("it is -7", "-7"),
        ("10-3", "3"),
        ("(5)-3", "3"),
        ("0", "0"),
    ],
)
async def test_signs_and_thousands(reply, expected):
    assert (await grade_integer(reply, expected)).correct


async def test_a_very_long_number_is_no_trouble():
    assert (await grade_integer("9" * 5000, "85")).well_formed
