"""Puzzles of reasoning_gym: made from seeds, scored by their own rules, in a process that may break."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import psutil
import pytest

from tinsmith.envs import MathConfig
from tinsmith.envs.grading.pool import Pool, close_shared_pools, shared_pool
from tinsmith.envs.gym_guard import checked
from tinsmith.envs.reasoning_gym import SCORING, GymGrader, parse_args, read_answer
from tinsmith.errors import ConfigError

pytest.importorskip("reasoning_gym", reason="needs the extra tinsmith[reasoning-gym]")

SUMS = "reasoning_gym:chain_sum"
SMALL = "min_terms=2,max_terms=2,min_digits=1,max_digits=1"
SLOW = "(x+y+z+a+b+c)**60*(x+y+z+a+b+c)**60"  # minutes of work


@pytest.fixture(scope="module")
def sums() -> MathConfig:
    config = MathConfig(dataset=SUMS, task_args=SMALL, limit=60, held_out=0.5)
    config.rows("train")
    return config


def test_the_splits_share_no_question(sums):
    train, held_out = sums.rows("train"), sums.rows("eval")
    assert train
    assert len(held_out) == len({row.question for row in held_out})  # such sums come up again
    assert not {row.question for row in train} & {row.question for row in held_out}
    assert len({row.id for row in train + held_out}) == len(train) + len(held_out)
    assert train[0].id.startswith("reasoning_gym/chain_sum/")


async def test_the_tasks_own_scorer_decides(sums):
    grade, row = sums.grader(), sums.rows("train")[0]
    right = await grade(f"Well, <answer> {row.answer} </answer>.", row.expected)
    assert (right.correct, right.well_formed, right.score) == (True, True, 1.0)
    assert right.answer == row.answer
    partly = await grade(f"about {row.answer}", row.expected)
    assert not partly.correct
    assert 0 < partly.score < 1
    wrong = await grade("<answer>x</answer>", row.expected)
    assert (wrong.correct, wrong.score) == (False, 0.0)
    silent = await grade("<answer></answer>", row.expected)
    assert (silent.well_formed, silent.score) == (False, 0.0)


async def test_a_puzzle_is_scored_by_its_own_entry():
    config = MathConfig(dataset="reasoning_gym:n_queens", limit=3, held_out=0)
    grade, rows = config.grader(), config.rows("train")
    assert [(await grade(row.answer, row.expected)).score for row in rows] == [1.0, 1.0, 1.0]
    assert (await grade(rows[0].answer, rows[1].expected)).score < 1


async def test_an_answer_is_never_run_as_code(tmp_path):
    """This task evaluates answers that look like a list."""
    config = MathConfig(dataset="reasoning_gym:binary_matrix", limit=1, held_out=0)
    grade, (row,) = config.grader(), config.rows("train")
    mark = tmp_path / "mark"
    for code in (f"[open({str(mark)!r}, 'w')]", f"[__import__('os').system('touch {mark}')]"):
        assert (await grade(code, row.expected)).score == 0
    assert not mark.exists()
    as_list = str([[int(cell) for cell in line.split()] for line in row.answer.splitlines()])
    assert (await grade(as_list, row.expected)).score > 0  # what the task itself allows


def test_a_scorer_that_takes_too_long_costs_one_process():
    pool = Pool(SCORING, 1, dataclasses.replace(SCORING.limits, processor_seconds=0.5))
    try:
        slow = ["intermediate_integration", {}, [0, 1, 0], SLOW]
        reply = pool.submit(slow).result()
        assert (reply.answer, reply.note) == (None, "took longer than 0.5 s of processor time")
        quick = ["chain_sum", {}, "5", "5"]
        assert pool.submit(quick).result().answer == [1.0, ""]
        assert (pool.usage.started, pool.usage.killed) == (2, 1)
    finally:
        pool.close()


async def test_a_scorer_that_ended_scores_nothing_and_is_replaced(sums):
    grade, row = sums.grader(), sums.rows("train")[0]
    assert (await grade(row.answer, row.expected)).correct
    for pid in shared_pool(SCORING).usage.pids:
        psutil.Process(pid).kill()
    lost = await grade(row.answer, row.expected)
    close_shared_pools()  # another of its workers may have been killed too
    assert (lost.correct, lost.score, lost.note) == (
        False,
        0.0,
        "the scorer took too long or ended",
    )
    assert (await grade(row.answer, row.expected)).correct


def test_problems_are_the_same_in_every_process():
    """This task draws from a set, whose order depends on the hash seed."""
    code = (
        "from tinsmith.envs import MathConfig\n"
        "c = MathConfig(dataset='reasoning_gym:polynomial_multiplication', limit=5)\n"
        "print([(r.id, r.answer) for s in ('train', 'eval') for r in c.rows(s)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


@pytest.mark.parametrize(
    ("dataset", "task_args", "words"),
    [
        ("reasoning_gym:chain_sums", "", "Did you mean chain_sum?"),
        (SUMS, "max_term=3", "env.task_args must be one of .* Did you mean max_terms?"),
        (SUMS, "max_terms=-3", "chain_sum refuses env.task_args"),
    ],
)
def test_a_wrong_task_or_setting_is_a_sentence(dataset, task_args, words):
    with pytest.raises(ConfigError, match=words):
        MathConfig(dataset=dataset, task_args=task_args).rows("train")


def test_a_missing_package_is_a_sentence():
    code = (
        "import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'reasoning_gym' else found(name, *a)\n"
        "from tinsmith.envs import MathConfig; from tinsmith.errors import ConfigError\n"
        f"try: MathConfig(dataset={SUMS!r}).rows('train')\n"
        "except ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "tinsmith[reasoning-gym]"' in done.stdout


def test_the_settings_of_a_task():
    assert parse_args("a=1, b=x,c=True,d=0.5") == {"a": 1, "b": "x", "c": True, "d": 0.5}
    assert parse_args('{"operators": ["+", "-"]}') == {"operators": ["+", "-"]}
    assert parse_args("") == {}
    for wrong in ("a", "=1", "{"):
        with pytest.raises(ConfigError, match=r"env\.task_args"):
            parse_args(wrong)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("5", "5"),
        ("<answer>4</answer> no, <answer>\n5\n</answer>", "5"),
        ("<think><answer>4</answer></think> \\boxed{5}", "5"),
        ("<answer>5", "5"),
        ("  ", ""),
    ],
)
def test_which_part_of_a_reply_is_the_answer(reply, answer):
    assert read_answer(reply) == answer


@pytest.mark.parametrize(
    "text", ["(1 + 2)*3/4", "x**3/3 + C", "exp(2*x)*sin(x) - sqrt(x)", "2**-3", "x**n"]
)
def test_formulas_pass(text):
    assert checked(text, formulas=True) == text


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')", "x.__class__", "(lambda: 1)()", "[i for i in x]", "open(x)", "exec('1')",
        "9**9**9", "9**(9*99)", "2**100000", "1 << 9999", "'a'*9", "f'{x}'", "x[0]", "sin(x, y=1)", "x if x else y",
        "1;2", "(" * 3000, "1" * 5000, "yield", "x := 1", "preview(x)",
    ],
)  # fmt: skip
def test_anything_else_does_not(text):
    with pytest.raises((ValueError, SyntaxError, MemoryError, RecursionError)):
        checked(text, formulas=True)


@pytest.mark.parametrize("text", ["x", "[x]", "abs(1)", "print", "[1, [2]].pop()"])
def test_lists_have_no_names(text):
    with pytest.raises(ValueError, match=r"a name|a call|not an expression"):
        checked(text, formulas=False)


def test_a_grader_can_be_pickled():
    import pickle

    assert pickle.loads(pickle.dumps(GymGrader("chain_sum", "a=1"))) == GymGrader(
        "chain_sum", "a=1"
    )
