"""Named datasets on small files of their own columns, and files of the user's."""

from __future__ import annotations

import csv
import json

import pytest

from tinsmith.envs import MathConfig
from tinsmith.envs.datasets.difficulty import Difficulties
from tinsmith.envs.datasets.table import SOURCES
from tinsmith.envs.datasets.text import (
    after_hashes,
    final_answer,
    last_boxed,
    same_question,
    text,
    without_wrapper,
)
from tinsmith.errors import ConfigError


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path))
    return tmp_path / "datasets"


def write(path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def both(config: MathConfig) -> dict[str, str]:
    """Every question with its answer."""
    rows = [*config.rows("train"), *config.rows("eval")]
    assert len({row.id for row in rows}) == len(rows)
    return {row.question: row.answer for row in rows}


def gsm8k(i: int) -> dict:
    return {"question": f"How many are {i} eggs?", "answer": f"It is <<{i}={i}>>.\n#### {i:,}"}


def math500(i: int, subject: str = "Algebra") -> dict:
    return {
        "problem": f"Solve $x = {i}$.",
        "solution": f"So $\\boxed{{{i}}}$.",
        "answer": f"\\frac{{{i}}}{{7}}",
        "subject": subject,
        "level": i % 5 + 1,
        "unique_id": f"test/algebra/{i}.json",
    }


def hendrycks(i: int, kind: str = "Algebra") -> dict:
    return {
        "problem": f"Solve $x = {i}$.",
        "level": f"Level {i % 5 + 1}",
        "type": kind,
        "solution": f"First $\\boxed{{0}}$, no: $\\boxed{{\\frac{{{i}}}{{7}}}}$.",
    }


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_gsm8k(home, ending):
    write(home / f"gsm8k/train.{ending}", [gsm8k(i) for i in range(1995, 2005)])
    write(home / f"gsm8k/test.{ending}", [gsm8k(i) for i in range(5)])
    config = MathConfig(dataset="gsm8k")
    assert [row.answer for row in config.rows("eval")] == ["0", "1", "2", "3", "4"]
    assert config.rows("train")[-1].answer == "2004"  # without its comma
    assert config.rows("train")[0].question == "How many are 1995 eggs?"
    assert config.rows("train")[0].id.startswith("gsm8k/")


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_math500_holds_a_share_out(home, ending):
    write(home / f"math500/test.{ending}", [math500(i) for i in range(60)])
    config = MathConfig(dataset="math500", held_out=0.25)
    assert both(config)["Solve $x = 3$."] == "\\frac{3}{7}"
    assert 5 <= len(config.rows("eval")) <= 25
    assert len(config.rows("train")) + len(config.rows("eval")) == 60
    assert len(MathConfig(dataset="math500", held_out=7).rows("eval")) == 7
    assert len(MathConfig(dataset="math500", held_out=1).rows("eval")) == 60
    assert MathConfig(dataset="math500", held_out=0).rows("eval") == []


def test_parts_and_difficulties_of_math500(home):
    rows = [math500(i) for i in range(10)] + [
        math500(i, "Counting & Probability") for i in range(10, 20)
    ]
    write(home / "math500/test.jsonl", rows)
    some = both(MathConfig(dataset="math500", subset="counting_and_probability", difficulty="4-5"))
    assert sorted(some) == [f"Solve $x = {i}$." for i in (13, 14, 18, 19)]


def test_hendrycks_leaves_out_math500_and_takes_the_last_box(home):
    write(home / "hendrycks/train.jsonl", [hendrycks(i) for i in range(20)])
    write(home / "hendrycks/test.jsonl", [hendrycks(i, "Geometry") for i in range(20, 40)])
    with pytest.raises(
        ConfigError, match=r"hendrycks leaves out the problems of math500, but .*math500"
    ):
        MathConfig(dataset="hendrycks").rows("train")
    write(home / "math500/test.jsonl", [math500(i) for i in (7, 25)])
    config = MathConfig(dataset="hendrycks")
    found = both(config)
    assert len(found) == 38
    assert "Solve $x = 7$." not in found
    assert "Solve $x = 25$." not in found
    assert found["Solve $x = 8$."] == "\\frac{8}{7}"
    assert config.rows("eval")
    assert len(both(MathConfig(dataset="hendrycks", subset="geometry"))) == 19
    assert len(both(MathConfig(dataset="hendrycks", difficulty="5"))) == 8


def test_hendrycks_in_the_hubs_folders(home):
    write(home / "math500/test.jsonl", [math500(1)])
    for kind, first in (("algebra", 0), ("geometry", 100)):
        for split, start in (("train", 0), ("test", 20)):
            rows = [hendrycks(i) for i in range(first + start, first + start + 20)]
            write(home / f"hendrycks/{kind}/{split}-00000-of-00001.parquet", rows)
    rows = [hendrycks(i, "Geometry") for i in range(100, 140)]
    write(home / "hendrycks/geometry/train-00000-of-00001.parquet", rows)
    assert len(both(MathConfig(dataset="hendrycks", subset="algebra", held_out=0))) == 39


def test_minerva_is_the_test_split(home):
    write(home / "minerva/test.jsonl", [hendrycks(i) for i in range(20)])
    assert len(both(MathConfig(dataset="minerva"))) == 20


def test_polaris_takes_the_hardest(home):
    rows = [{"problem": f"p{i}", "answer": str(i), "difficulty": f"{i % 9}/8"} for i in range(90)]
    write(home / "polaris/train.parquet", rows)
    usual = both(MathConfig(dataset="polaris"))
    assert MathConfig(dataset="polaris").difficulty == "0/8,1/8"
    assert {int(answer) % 9 for answer in usual.values()} == {0, 1}
    assert len(both(MathConfig(dataset="polaris", difficulty="all"))) == 90
    assert len(both(MathConfig(dataset="polaris", difficulty="5/8-8/8"))) == 40
    with pytest.raises(ConfigError, match="none of the 90 rows of polaris is of the"):
        MathConfig(dataset="polaris", difficulty="3").rows("train")


def test_deepmath(home):
    rows = [
        {"question": f"q{i}", "final_answer": f"{i}/2", "difficulty": 5 + i / 2, "topic": "t"}
        for i in range(10)
    ]
    write(home / "deepmath/train.parquet", rows)
    assert both(MathConfig(dataset="deepmath"))["q3"] == "3/2"
    assert set(both(MathConfig(dataset="deepmath", difficulty="9-10"))) == {"q8", "q9"}


def test_nemotron_has_a_question_many_times(home):
    rows = [
        {"problem": f"p{i % 10}", "expected_answer": str(i % 10), "messages": [], "tools": None}
        for i in range(50)
    ]
    write(home / "nemotron/high_part02.jsonl", rows)
    assert len(both(MathConfig(dataset="nemotron"))) == 10
    write(home / "nemotron/low.jsonl", rows[:5])
    assert len(both(MathConfig(dataset="nemotron", subset="low"))) == 5


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_olmo3_is_the_part_about_mathematics(home, ending):
    rows = [
        {
            "prompt": f"user: What is {i}?",
            "ground_truth": [str(i)],
            "dataset": ["math" if i % 2 else "code"],
            "original_dataset": "o",
        }
        for i in range(20)
    ]
    write(home / f"olmo3/train.{ending}", rows)
    found = both(MathConfig(dataset="olmo3"))
    assert found == {f"What is {i}?": str(i) for i in range(1, 20, 2)}


def test_dapo(home):
    wrapped = (
        "Solve the following math problem step by step. The last line of your response should be of the "
        "form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is 9?"
        '\n\nRemember to put your answer on its own line after "Answer:".'
    )
    rows = [{"prompt": f"What is {i}?", "solution": str(i), "ability": "MATH"} for i in range(5)]
    write(home / "dapo/train.jsonl", [*rows, {"prompt": wrapped, "solution": "9"}])
    assert both(MathConfig(dataset="dapo"))["What is 9?"] == "9"
    write(home / "dapo/en/train.jsonl", rows[:2])
    assert len(both(MathConfig(dataset="dapo", subset="en"))) == 2


def test_aime(home):
    rows = [
        {"id": i, "problem": f"p{i}", "solution": "s", "answer": f"{i:03}", "url": "u"}
        for i in range(20)
    ]
    write(home / "aime/train.parquet", rows)
    assert both(MathConfig(dataset="aime"))["p7"] == "007"


def test_every_named_dataset_is_tried_here():
    with open(__file__) as file:
        tried = file.read()
    assert all(f'dataset="{name}"' in tried for name in SOURCES)


def test_a_question_of_the_test_split_is_not_trained_on(home):
    train = [gsm8k(i) for i in range(10)]
    copies = [
        {"question": "  HOW many\tare 3 eggs? ", "answer": "#### 3"},
        {"question": "How many are ４ eggs?", "answer": "#### 4"},
    ]
    write(home / "gsm8k/train.jsonl", train)
    write(home / "gsm8k/test.jsonl", [*copies, gsm8k(99)])
    config = MathConfig(dataset="gsm8k")
    assert len(config.rows("eval")) == 3
    assert {row.answer for row in config.rows("train")} == set("01256789")


def test_a_question_stays_on_its_side_when_rows_are_added(home):
    write(home / "aime/train.jsonl", [{"problem": f"p{i}", "answer": i} for i in range(100)])
    before = {row.question for row in MathConfig(dataset="aime").rows("eval")}
    rows = [{"problem": f"p{i}", "answer": i} for i in reversed(range(150))]
    write(home / "aime/train.jsonl", rows)
    after = {row.question for row in MathConfig(dataset="aime").rows("eval")}
    assert before == {q for q in after if int(q[1:]) < 100}
    other = {row.question for row in MathConfig(dataset="aime", seed=1).rows("eval")}
    assert other != after


def test_bad_rows_are_skipped_and_counted(home, capsys):
    bad = [
        {"question": "no answer"},
        {"question": None, "answer": "#### 1"},
        {"question": "q", "answer": "5"},
    ]
    write(home / "gsm8k/train.jsonl", [*bad, *map(gsm8k, range(5))])
    with (home / "gsm8k/train.jsonl").open("a") as file:
        file.write('{"question": "cut\n\n[1, 2]\n')
    write(home / "gsm8k/test.jsonl", [gsm8k(9)])
    assert len(MathConfig(dataset="gsm8k").rows("train")) == 5
    assert "gsm8k: 5 rows skipped" in capsys.readouterr().err


def test_rows_that_are_all_bad_are_a_sentence(home, tmp_path):
    write(home / "gsm8k/train.jsonl", [{"prompt": "a", "target": "b"}] * 3)
    with pytest.raises(ConfigError) as caught:
        MathConfig(dataset="gsm8k").rows("train")
    said = str(caught.value)
    assert "3 were read, with the columns prompt, target" in said
    assert "question for the question and answer for the answer" in said
    assert "env.question and env.answer" in said
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ConfigError, match="0 were read, with no rows"):
        MathConfig(dataset=str(tmp_path / "empty.jsonl")).rows("train")


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv", "json"])
def test_a_file_of_the_users(tmp_path, ending):
    path = tmp_path / f"mine.{ending}"
    write(path, [{"frage": f"f{i}", "antwort": i, "more": "x"} for i in range(30)])
    config = MathConfig(dataset=str(path), question="frage", answer="antwort")
    assert both(config) == {f"f{i}": str(i) for i in range(30)}
    assert config.rows("eval")
    assert config.rows("train")[0].id.startswith("mine/")


def test_usual_columns_and_forms_are_found(tmp_path):
    rows = [
        {"problem": "a", "solution": "so \\boxed{\\frac{1}{2}}"},
        {
            "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}],
            "answer": 2.0,
        },
        {"question": "c", "ground_truth": ["3", "drei"]},
        {"question": "d", "answer": "work\n#### 1,004"},
    ]
    write(tmp_path / "mine.jsonl", rows)
    found = both(MathConfig(dataset=str(tmp_path / "mine.jsonl")))
    assert found == {"a": "\\frac{1}{2}", "b": "2", "c": "3", "d": "1004"}
    write(tmp_path / "deep.jsonl", [{"p": {"q": "e"}, "reward_model": {"ground_truth": "5"}}])
    deep = MathConfig(
        dataset=str(tmp_path / "deep.jsonl"), question="p.q", answer="reward_model.ground_truth"
    )
    assert both(deep) == {"e": "5"}


def test_a_directory_of_files(tmp_path):
    write(
        tmp_path / "mine/train-00000-of-00002.jsonl",
        [{"question": f"q{i}", "answer": i} for i in range(5)],
    )
    write(
        tmp_path / "mine/train-00001-of-00002.jsonl",
        [{"question": f"q{i}", "answer": i} for i in range(5, 9)],
    )
    write(tmp_path / "mine/validation.csv", [{"question": "q1", "answer": 1}])
    config = MathConfig(dataset=str(tmp_path / "mine"))
    assert [row.question for row in config.rows("eval")] == ["q1"]
    assert len(config.rows("train")) == 8
    chosen = MathConfig(
        dataset=str(tmp_path / "mine"), train_split="validation", eval_split="train"
    )
    assert len(chosen.rows("eval")) == 9


def test_files_that_cannot_be_read_are_sentences(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match="is not a Parquet file"):
        MathConfig(dataset=str(tmp_path / "a.parquet")).rows("train")
    (tmp_path / "a.txt").write_text("q a")
    with pytest.raises(ConfigError, match=r"must end in \.jsonl"):
        MathConfig(dataset=str(tmp_path / "a.txt"))
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe{}\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        MathConfig(dataset=str(tmp_path / "b.jsonl")).rows("train")


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"$\boxed{5}$", "5"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\text{(A)} }", r"\text{(A)}"),
        (r"\fbox{7}", "7"),
        (r"\boxed 9$", "9"),
        (r"\boxed{unclosed", None),
        ("nothing", None),
    ],
)
def test_the_last_box(solution, answer):
    assert last_boxed(solution) == answer


def test_small_rules_of_text():
    assert after_hashes("a #### 1 #### -2,000 ") == "-2000"
    assert after_hashes("no mark") is None
    assert final_answer("plain") == "plain"
    assert [text(v) for v in (None, float("nan"), 2.5, True, [], {"a": 1})] == [
        "",
        "",
        "2.5",
        "True",
        "",
        "",
    ]
    assert without_wrapper("Solve it.") == "Solve it."
    assert same_question("Ａ b\nC") == same_question("abc") != same_question("abd")


@pytest.mark.parametrize(
    ("wanted", "value", "within"),
    [
        ("0/8,1/8", "1/8", True),
        ("0/8,1/8", "2/8", False),
        ("1/4", "2/8", True),
        ("9-10", 9.5, True),
        ("9-10", 8, False),
        ("5", "Level 5", True),
        ("5", "Level ?", False),
        ("5", None, False),
        ("1", -1, False),
    ],
)
def test_difficulties(wanted, value, within):
    assert (value in Difficulties.parse(wanted)) is within
