"""Worker processes: a question can break at most one, and none outlives its parent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tinsmith.envs.grading.grade import Grade
from tinsmith.envs.grading.math import ALGEBRA, grade_math
from tinsmith.envs.grading.pool import Kind, Limits, Pool, Reply, shared_pool
from tinsmith.envs.reasoning_gym import SCORING
from tinsmith.errors import ConfigError, RunError

HANGS = r"9^{9^{9^{9}}}"
EATS_MEMORY = r"\operatorname{zeros}(20000,20000)"
END_SECONDS = 60


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(ALGEBRA, size=1, limits=Limits(processor_seconds=1.0))
    yield pool
    pool.close()


async def ask(pool: Pool, answer: str, expected: str = "2x") -> Grade:
    return await grade_math(f"\\boxed{{{answer}}}", expected, pool)


async def test_a_hanging_expression_costs_one_worker(pool: Pool) -> None:
    assert (await ask(pool, "x+x")).correct
    (first,) = pool.usage.pids
    grade = await ask(pool, HANGS)
    assert (grade.correct, grade.well_formed, grade.answer) == (False, True, HANGS)
    assert grade.note == "took longer than 1 s of processor time"
    assert not psutil.pid_exists(first)
    assert (await ask(pool, "x+x")).correct
    assert (pool.usage.started, pool.usage.killed) == (2, 1)


async def test_memory_is_bounded(pool: Pool) -> None:
    for expected in ("2x", "7"):
        grade = await ask(pool, EATS_MEMORY, expected)
        assert (grade.correct, grade.well_formed) == (False, True)
    assert (await ask(pool, "x+x")).correct
    assert 0 < pool.usage.peak_bytes < Limits().memory_bytes
    (worker,) = pool.usage.pids
    assert psutil.Process(worker).rlimit(psutil.RLIMIT_AS)[1] == Limits().memory_bytes


async def test_nothing_starts_for_what_needs_no_algebra(pool: Pool) -> None:
    for answer, expected in (
        ("72", "72"),
        ("0.5", r"\frac12"),
        ("Yes", "Yes"),
        ("", "5"),
        ("no", "5"),
    ):
        await ask(pool, answer, expected)
    assert pool.usage.started == 0


async def test_one_after_another_uses_one_worker() -> None:
    pool = Pool(ALGEBRA, size=4)
    for _ in range(5):
        assert (await ask(pool, "x+x")).correct
    assert pool.usage.started == 1
    pool.close()


async def test_the_memory_of_who_asks_is_not_held_against_a_worker() -> None:
    large = b"x" * (700 << 20)  # on Linux a child's peak begins with that of its parent
    del large
    pool = Pool(ALGEBRA, size=1)
    for _ in range(3):
        assert (await ask(pool, "x+x")).correct
    assert pool.usage.started == 1
    assert pool.usage.peak_bytes < 500 << 20
    pool.close()


async def test_many_at_once_with_bombs_among_them() -> None:
    pool = Pool(ALGEBRA, size=2, limits=Limits(processor_seconds=0.7))
    answers = [HANGS if n % 50 == 7 else f"{n}x+x" for n in range(200)]
    expected = [f"{n + 1}x" for n in range(200)]
    grades = await asyncio.gather(*map(lambda a, e: ask(pool, a, e), answers, expected))
    assert [g.correct for g in grades] == [a != HANGS for a in answers]
    assert all(bool(g.note) == (a == HANGS) for g, a in zip(grades, answers, strict=True))
    assert pool.usage.killed == answers.count(HANGS)
    pool.close()


async def test_cancelled_questions_do_not_break_the_pool(pool: Pool) -> None:
    tasks = [asyncio.create_task(ask(pool, answer)) for answer in (HANGS, "x+x", "3x-x")]
    await asyncio.sleep(0)  # let them be asked
    for task in tasks:
        task.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in done)
    assert (await ask(pool, "x+x")).correct


def test_one_pool_serves_several_loops_and_threads(pool: Pool) -> None:
    results: list[bool] = []

    def one_loop() -> None:
        results.append(asyncio.run(ask(pool, "x+x")).correct)

    one_loop()
    threads = [threading.Thread(target=one_loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 5


async def test_a_worker_that_is_killed_from_outside_is_replaced(pool: Pool) -> None:
    assert (await ask(pool, "x+x")).correct
    (worker,) = pool.usage.pids
    psutil.Process(worker).kill()
    assert "ended" in (await ask(pool, "x+x")).note
    assert (await ask(pool, "x+x")).correct


async def test_a_closed_pool_says_so(pool: Pool) -> None:
    assert (await ask(pool, "x+x")).correct
    processes = [psutil.Process(pid) for pid in pool.usage.pids]
    pool.close()
    _, alive = psutil.wait_procs(processes, timeout=END_SECONDS)
    assert alive == []
    with pytest.raises(RunError, match="closed"):
        await ask(pool, "x+x")


@pytest.mark.parametrize(
    "attack",
    [
        "__import__('os').system('touch {}')",
        "x+__import__('os').system('touch {}')",
        r"\text{{__import__('os').system('touch {}')}}",
        "1+(lambda: __import__('pathlib').Path('{}').touch())()",
        r"\operatorname{{eval}}(__import__('os').mkdir('{}'))",
        "1.0*open('{}','w').close()",
    ],
)
async def test_text_is_never_run(attack: str, pool: Pool, tmp_path: Path) -> None:
    target = tmp_path / "pwned"
    for reply in (attack.format(target), f"The answer is {attack.format(target)}"):
        for expected in ("7", "2x", "(1,2)", attack.format("elsewhere")):
            assert not (await grade_math(reply, expected, pool)).correct
            assert not (await ask(pool, reply, expected)).correct
    assert not target.exists()


def test_sympy_in_a_worker_evaluates_no_strings() -> None:
    code = (
        "import sympy\n"
        "from tinsmith.envs.grading import judge\n"
        "judge.warm_up(); judge.forbid_eval()\n"
        "assert sympy.sympify('3/2') == sympy.Rational(3, 2)\n"
        "for text in ('x+1', '__import__(\"os\")'):\n"
        "    try: sympy.sympify(text)\n"
        "    except ValueError: continue\n"
        "    raise SystemExit(text)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == 0


PARENT = """
import sys, time
from tinsmith.envs.grading.math import ALGEBRA
from tinsmith.envs.grading.pool import Limits, Pool
pool = Pool(ALGEBRA, size=1, limits=Limits(processor_seconds=3.0))
assert pool.submit(["x+x", "2x"]).result().answer
if sys.argv[1] == "busy":
    pool.submit(["9^{9^{9^{9}}}", "2x"])
print(*pool.usage.pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
@pytest.mark.parametrize("end", ["kill", "leave"])
def test_no_worker_outlives_its_parent(state: str, end: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, state],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(workers) == 1
    if end == "kill":
        parent.kill()
    else:
        parent.stdin.close()
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=END_SECONDS)
    assert alive == []
    parent.stdout.close()


async def test_a_worker_inherits_no_secrets(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    assert (await ask(pool, "x+x")).correct
    (worker,) = pool.usage.pids
    seen = psutil.Process(worker).environ()
    assert "TINKER_API_KEY" not in seen
    assert set(seen) <= {"LANG", "OMP_NUM_THREADS", "PYTHONHASHSEED", "LC_CTYPE"}


def test_a_forked_child_starts_workers_of_its_own() -> None:
    code = (
        "import asyncio, os\n"
        "from tinsmith.envs.grading.math import ALGEBRA, grade_math\n"
        "from tinsmith.envs.grading.pool import shared_pool\n"
        "ask = lambda: asyncio.run(grade_math('\\\\boxed{x+x}', '2x')).correct\n"
        "assert ask()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert shared_pool(ALGEBRA).usage.started == 0\n"
        "    os._exit(0 if ask() else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert ask() and shared_pool(ALGEBRA).usage.started == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_grader_is_cheap() -> None:
    code = "import sys, tinsmith.envs.grading.math; print([m for m in ('sympy', 'numpy', 'math_verify') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def ask_chore(name: str, question: Any = None) -> tuple[Reply, Reply, int]:
    """The reply, that of a harmless question afterwards, and how many workers it took."""
    kind = Kind(f"tests.unit.envs.grading.chores:{name}", "json", "")
    pool = Pool(kind, size=1, limits=Limits(processor_seconds=0.3))
    try:
        return pool.submit(question).result(), pool.submit("hello").result(), pool.usage.started
    finally:
        pool.close()


def test_any_kind_of_work_is_done() -> None:
    first, second, workers = ask_chore("echo", {"a": [1, None, "\ud800\n"]})
    assert first.answer == {"a": [1, None, "\ud800\n"]}
    assert (second.answer, second.note, workers) == ("hello", "", 1)


def test_what_the_work_prints_is_no_answer() -> None:
    first, second, workers = ask_chore("chatter", "quiet")
    assert (first.answer, second.answer, workers) == ("quiet", "hello", 1)


def test_an_error_costs_one_worker() -> None:
    first, second, workers = ask_chore("refuse")
    assert (first.answer, first.note) == (None, "the grading process ended with code 1")
    assert (second.answer, workers) == ("hello", 2)


def test_too_much_memory_costs_one_worker() -> None:
    first, second, workers = ask_chore("hoard")
    assert (first.answer, "more memory" in first.note) == (None, True)
    assert (second.answer, workers) == ("hello", 2)


def test_time_is_counted_but_for_what_is_untimed() -> None:
    first, second, workers = ask_chore("look_up", "long")
    assert (first.answer, second.answer, workers) == ("long", "hello", 1)
    first, second, workers = ask_chore("look_up", "long, then stuck")
    assert (first.answer, first.note) == (None, "took longer than 0.3 s of processor time")
    assert (second.answer, workers) == ("hello", 2)


def test_work_that_cannot_be_prepared_is_a_sentence() -> None:
    with pytest.raises(RunError, match=r"could not be started: No module named 'not_there'"):
        ask_chore("cannot_import")


@pytest.mark.parametrize(("kind", "extra"), [(ALGEBRA, "math"), (SCORING, "reasoning-gym")])
def test_a_missing_package_is_a_sentence(
    kind: Kind, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared_pool(kind) is shared_pool(kind) is not shared_pool(Kind("a:b", "json", ""))
    monkeypatch.setattr("importlib.util.find_spec", {}.get)
    with pytest.raises(ConfigError, match=rf'pip install "tinsmith\[{extra}\]"'):
        Pool(kind)
