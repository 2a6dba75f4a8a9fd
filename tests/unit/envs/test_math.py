"""The arithmetic problems: their words, their order, their gold answers."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys

import pytest

from tinsmith.chat.turns import Action, Observation
from tinsmith.envs import ENVIRONMENTS, MathConfig
from tinsmith.envs.arithmetic import rows
from tinsmith.errors import ConfigError, RunError


class Bytes:
    """A renderer whose tokens are the bytes of the text."""

    def prompt(self, messages):
        return Observation(list("\n".join(m["content"] for m in messages).encode()), (0,))

    def parse(self, action):
        return bytes(action.tokens_T).rstrip(b"\0").decode()

    def text(self, tokens_T):
        return bytes(tokens_T).decode()


def say(text: str) -> Action:
    tokens = [*text.encode(), 0]
    return Action(tokens, [-1.0] * len(tokens), "stop")


@pytest.fixture
def problems():
    return MathConfig().build(Bytes(), 0, "train")


async def test_the_gold_answer_of_every_row_is_accepted():
    for row in (r for split in rows(0) for r in split[:300]):
        a, b = re.fullmatch(r"What is (\d+) \+ (\d+)\?", row.question).groups()
        assert int(row.answer) == int(a) + int(b)


async def test_an_episode(problems):
    (builder,) = problems.batch(1, 1)
    envs = await builder.make_envs(2)
    shown = bytes((await envs[0].initial_observation()).tokens_T).decode()
    assert shown == builder.row.question
    right = await envs[0].step(say(builder.row.answer))
    wrong = await envs[1].step(say("I do not know"))
    assert (right.reward, right.done) == (1.0, True)
    assert right.metrics == {"correct": 1.0, "well_formed": 1.0}
    assert right.logs["expected"] == right.logs["answer"] == builder.row.answer
    assert (wrong.reward, wrong.metrics["well_formed"]) == (0.0, 0.0)


def test_the_step_alone_decides_the_problems(problems):
    again = MathConfig().build(Bytes(), 0, "train")
    other = MathConfig().build(Bytes(), 1, "train")
    ids = [b.problem_id for b in problems.batch(7, 64)]
    assert ids == [b.problem_id for b in again.batch(7, 64)]
    assert ids != [b.problem_id for b in other.batch(7, 64)]
    assert ids != [b.problem_id for b in problems.batch(8, 64)]


def test_every_problem_comes_once_before_any_comes_again(problems):
    size = 1000
    steps = range(1, 2 + len(problems) // size)
    seen = [b.problem_id for step in steps for b in problems.batch(step, size)][: len(problems)]
    assert len(set(seen)) == len(problems)


def test_the_held_out_problems_do_not_depend_on_the_run(problems):
    one = MathConfig().build(Bytes(), 1, "eval").batch(1, 50)
    two = MathConfig().build(Bytes(), 2, "eval").batch(1, 50)
    assert [b.problem_id for b in one] == [b.problem_id for b in two]


def test_state_of_another_dataset_is_refused(problems):
    problems.restore(problems.state())
    with pytest.raises(RunError, match="cannot go on"):
        problems.restore({"rows": 5})


def test_a_builder_can_be_pickled(problems):
    (builder,) = problems.batch(1, 1)
    assert pickle.loads(pickle.dumps(builder.row)) == builder.row


def test_an_unknown_dataset_is_a_sentence():
    with pytest.raises(ConfigError) as caught:
        MathConfig(dataset="arithmetc")
    assert "env.dataset must be one of arithmetic" in str(caught.value)
    assert "Did you mean arithmetic?" in str(caught.value)


def test_environments_are_found_by_name_without_heavy_imports():
    assert ENVIRONMENTS["MathConfig"] is MathConfig
    heavy = "torch transformers tinker fastapi pydantic numpy renderers"
    code = f"import sys, tinsmith.envs, tinsmith.rl.config, tinsmith.records.writer, tinsmith.cli.config; print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
