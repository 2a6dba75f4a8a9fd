"""`tinsmith envs`: the list, and the check of a grader on right and wrong answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinsmith.cli import envs
from tinsmith.cli.main import main
from tinsmith.envs.datasets import NAMES
from tinsmith.envs.grading.check import check_rows
from tinsmith.envs.grading.grade import Grade
from tinsmith.envs.problem import Row
from tinsmith.errors import ConfigError

ANSWERS = [
    "72",
    r"\frac{1}{2}",
    r"3\sqrt{13}",
    "(1,2)",
    r"\text{Evelyn}",
    "Yes",
    "1,-2",
    r"10\%",
    "x^2+1",
    "3.14",
    "-4",
]


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    rows = [{"question": f"Question {n}?", "answer": answer} for n, answer in enumerate(ANSWERS)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_the_list_has_every_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    shown = capsys.readouterr().out
    assert "MathConfig" in shown
    assert all(name in shown for name in NAMES)
    assert set(envs.DATASETS) == set(NAMES)


def test_arithmetic_is_graded_as_it_must_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "check", "arithmetic", "largest=20", "--limit", "50"]) == 0
    shown = capsys.readouterr().out
    assert "50 rows checked" in shown
    assert "All as it must be." in shown


def test_a_file_of_latex_answers(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert envs.run(["check", dataset, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert report["failures"] == []
    assert report["rows"] == len(ANSWERS)
    assert report["tallies"]["right answer"] == {"graded": len(ANSWERS), "as_it_must": len(ANSWERS)}
    assert {"off by one", "sign flipped", "digits shuffled", "empty", "garbage"} <= set(
        report["tallies"]
    )


async def test_a_grader_that_is_too_kind_or_too_strict_is_found_out() -> None:
    rows = [Row("a", "?", "5"), Row("b", "?", "\x1b[31m7")]

    async def says(correct: bool) -> Grade:
        return Grade(correct, True, "")

    kind = await check_rows(rows, lambda reply, expected: says(True), lambda answer: [answer])
    strict = await check_rows(rows, lambda reply, expected: says(False), lambda answer: [answer])
    assert not kind.passed
    assert {failure.kind for failure in strict.failures} == {"right answer"}
    assert strict.tallies["empty"].as_it_must == strict.tallies["empty"].graded == 2
    shown = "\n".join(envs.table("x", strict))
    assert "was refused" in shown
    assert "\x1b" not in shown
    assert "did not do as it must" in shown


async def test_rows_without_an_answer_prove_nothing() -> None:
    async def never(reply: str, expected: str) -> Grade:
        raise AssertionError("there is nothing to grade")

    report = await check_rows([Row("a", "?", "", key="k")], never, lambda answer: [answer])
    assert (report.without_answer, report.passed) == (1, False)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["check"], "NAME"),
        (["check", "aritmetic"], "Did you mean arithmetic"),
        (["check", "arithmetic", "largst=5"], "largest"),
        (["check", "arithmetic", "--limit", "0"], "limit"),
        (["chek"], "check"),
    ],
)
def test_mistakes_are_sentences(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        envs.run(argv)
