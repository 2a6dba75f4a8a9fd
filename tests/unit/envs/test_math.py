"""MathConfig: its settings, its problems in order, an episode."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from tinsmith.chat.turns import Action, Observation
from tinsmith.cli.config import parse
from tinsmith.envs import ENVIRONMENTS, MathConfig
from tinsmith.envs.arithmetic import rows
from tinsmith.envs.grading.grade import Grade
from tinsmith.envs.problem import ProblemGroup, Row, RowSource, Wording
from tinsmith.errors import ConfigError, RunError
from tinsmith.rl.rollouts import roll_group
from tinsmith.rl.types import RolloutLimits


class Bytes:
    """A renderer whose tokens are the bytes of the text."""

    def prompt(self, messages):
        return Observation(list("\n".join(m["content"] for m in messages).encode()), (0,))

    def parse(self, action):
        return bytes(action.tokens_T).rstrip(b"\0").decode()

    def text(self, tokens_T):
        return bytes(tokens_T).decode()


class Says:
    """A policy that says one thing."""

    version = 0

    def __init__(self, text: str) -> None:
        self._text = text

    async def __call__(self, observation, *, max_tokens, samples, seed):
        return [say(self._text)] * samples


def say(text: str) -> Action:
    tokens = [*text.encode(), 0]
    return Action(tokens, [-1.0] * len(tokens), "stop")


def ids(source, positions) -> list[str]:
    return [source.problem(position).problem_id for position in positions]


@pytest.fixture
def problems():
    return MathConfig().build(Bytes(), 0, "train")


async def test_the_gold_answer_of_every_row_is_accepted():
    for row in (r for split in rows(0) for r in split[:300]):
        a, b = re.fullmatch(r"What is (\d+) \+ (\d+)\?", row.question).groups()
        assert int(row.answer) == int(a) + int(b)


async def test_an_episode(problems):
    builder = problems.problem(0)
    envs = await builder.make_envs(2)
    shown = bytes((await envs[0].initial_observation()).tokens_T).decode()
    assert shown == builder.row.question
    right = await envs[0].step(say(builder.row.answer))
    wrong = await envs[1].step(say("I do not know"))
    assert (right.reward, right.done) == (1.0, True)
    assert right.metrics == {"correct": 1.0, "well_formed": 1.0}
    assert right.logs["expected"] == right.logs["answer"] == builder.row.answer
    assert (wrong.reward, wrong.metrics["well_formed"]) == (0.0, 0.0)


async def test_a_part_of_an_answer_earns_a_part_of_the_reward():
    async def half(reply, expected):
        return Grade(correct=False, well_formed=True, answer=reply, note="half of it", score=0.5)

    group = ProblemGroup(Row("a/1", "why?", "so", key="k"), Bytes(), half)
    (env,) = await group.make_envs(1)
    result = await env.step(say("because"))
    assert (result.reward, result.metrics["correct"]) == (0.5, 0.0)
    assert (result.logs["note"], result.logs["expected"]) == ("half of it", "so")


async def test_a_grader_that_breaks_fails_its_rollouts_and_nothing_else():
    async def broken(reply, expected):
        raise ZeroDivisionError("by zero")

    group = ProblemGroup(Row("a/1", "why?", "so"), Bytes(), broken)
    rolled = await roll_group(group, Says("because"), 3, RolloutLimits(16), seed=0)
    assert rolled.rewards_G() == [None, None, None]
    assert all("by zero" in t.error for t in rolled.trajectories_G)


async def test_the_words_around_a_question():
    group = ProblemGroup(Row("a/1", "why?", "so"), Bytes(), None, Wording("In a box.", "Be brief."))
    (env,) = await group.make_envs(1)
    shown = bytes((await env.initial_observation()).tokens_T).decode()
    assert shown == "Be brief.\nwhy?\n\nIn a box."


def test_the_position_alone_decides_the_problem(problems):
    again = MathConfig().build(Bytes(), 0, "train")
    other = MathConfig().build(Bytes(), 1, "train")
    some = ids(problems, range(448, 512))
    assert some == ids(again, range(448, 512))
    assert some != ids(other, range(448, 512))
    assert some != ids(problems, range(512, 576))


def test_every_problem_comes_once_before_any_comes_again(problems):
    size = len(problems)
    first, second = ids(problems, range(size)), ids(problems, range(size, 2 * size))
    assert len(set(first)) == size
    assert set(first) == set(second)
    assert first != second
    # Batches run over the end of an epoch, and older positions may be asked for again.
    assert ids(problems, range(size - 3, size + 3)) == first[-3:] + second[:3]


def test_the_held_out_problems_do_not_depend_on_the_run():
    one = MathConfig().build(Bytes(), 1, "eval")
    two = MathConfig().build(Bytes(), 2, "eval")
    assert ids(one, range(50)) == ids(two, range(50))


def test_state_of_another_dataset_is_refused(problems):
    problems.restore(problems.state())
    problems.restore({"rows": len(problems)})  # of a run that kept no fingerprint
    with pytest.raises(RunError, match=r"it had 5 when .* cannot go on"):
        problems.restore({"rows": 5})
    changed = [replace(row, answer="0") for row in MathConfig().rows("train")]
    other = RowSource(changed, Bytes(), None, 0)
    with pytest.raises(RunError, match=r"are not those it had .* log_path"):
        problems.restore(other.state())


def test_a_split_without_problems_says_so():
    with pytest.raises(RunError, match="no problem for this split"):
        RowSource([], Bytes(), None, 0).problem(0)
    with pytest.raises(ConfigError, match="no problem is left to train on"):
        MathConfig(held_out=1).build(Bytes(), 0, "train")


def test_a_row_can_be_pickled(problems):
    row = problems.problem(0).row
    assert pickle.loads(pickle.dumps(row)) == row


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dataset": "arithmetc"}, "must be one of arithmetic, gsm8k.* Did you mean arithmetic?"),
        ({"dataset": "./nowhere.jsonl"}, "there is no file or directory /.*nowhere.jsonl"),
        ({"dataset": "reasoning_gym:"}, "must name a task"),
        (
            {"dataset": "reasoning_gym:chain_sum", "task_args": "three"},
            "task_args must be name=value",
        ),
        ({"dataset": "polaris", "difficulty": "hard"}, "difficulty must be all, or numbers"),
        ({"dataset": "gsm8k", "difficulty": "1"}, "env.difficulty is for math500"),
        ({"dataset": "gsm8k", "subset": "algebra"}, "env.subset is for math500"),
        ({"dataset": "hendrycks", "subset": "algebr"}, "Did you mean algebra?"),
        ({"operators": ("+", "/")}, "env.operators must be one of"),
        ({"operators": ()}, "env.operators must be one of"),
        ({"operators": ("+", "+")}, "must not name a sign twice"),
        ({"smallest": 9, "largest": 9}, "env.smallest must be below env.largest"),
        ({"held_out": -1.0}, "env.held_out must be at least 0"),
        ({"held_out": 2.5}, "env.held_out must be a share"),
        ({"limit": 0}, "env.limit must be at least 1"),
        ({"max_tokens": 0}, "env.max_tokens must be at least 1"),
    ],
)
def test_a_wrong_setting_is_a_sentence(settings, words):
    with pytest.raises(ConfigError, match=words):
        MathConfig(**settings)


def test_defaults_that_depend_on_the_dataset():
    assert (MathConfig().max_tokens, MathConfig().prompt) == (32, "")
    gsm8k = MathConfig(dataset="gsm8k")
    assert gsm8k.max_tokens == gsm8k.limits().max_tokens_per_turn == 1024
    assert "\\boxed{}" in gsm8k.prompt
    assert "<answer>" in MathConfig(dataset="reasoning_gym:chain_sum").prompt
    assert MathConfig(dataset="gsm8k", max_tokens=5, prompt="").wording() == Wording()
    assert MathConfig(max_tokens=5).limits().max_tokens_per_turn == 5


def test_the_command_line_reaches_every_kind_of_setting(tmp_path, monkeypatch):
    (tmp_path / "my.jsonl").write_text('{"q": "1+1?", "a": 2}\n{"q": "2+2?", "a": 4}\n')
    monkeypatch.chdir(tmp_path)
    env = parse(["env.dataset=./my.jsonl", "question=q", "answer=a", "env.limit=1"]).env
    monkeypatch.chdir("/")  # the path is absolute by now
    assert env.dataset == str(tmp_path / "my.jsonl")
    assert {row.question for s in ("train", "eval") for row in env.rows(s)} == {"1+1?", "2+2?"}
    env = parse(["env.operators=+,-,*", "env.largest=9", "env.max_tokens=5"]).env
    assert (env.operators, env.largest, env.max_tokens) == (("+", "-", "*"), 9, 5)


def test_environments_are_found_by_name_without_heavy_imports():
    assert ENVIRONMENTS["MathConfig"] is MathConfig
    heavy = "torch transformers tinker fastapi pydantic numpy renderers datasets pyarrow sympy reasoning_gym"
    code = f"import sys, tinsmith.envs, tinsmith.rl.config, tinsmith.records.writer, tinsmith.cli.config; tinsmith.envs.MathConfig(); print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_problems_are_the_same_in_every_process(tmp_path):
    path = tmp_path / "my.jsonl"
    path.write_text("".join(f'{{"question": "what {i}?", "answer": {i}}}\n' for i in range(50)))
    code = (
        "from tinsmith.envs import MathConfig; from tinsmith.envs.problem import RowSource\n"
        f"for c in (MathConfig(), MathConfig(dataset={str(path)!r}, limit=20)):\n"
        "    for split in ('train', 'eval'):\n"
        "        s = RowSource(c.rows(split), None, None, 3)\n"
        "        print(s.fingerprint, [s.problem(i).problem_id for i in range(5)])"
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
