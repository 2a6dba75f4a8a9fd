"""What `tinsmith eval` and `tinsmith chat` print and remember, apart from any service."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tinsmith.chat.turns import Action, Observation
from tinsmith.cli.chat import Conversation, shown
from tinsmith.cli.eval_report import LINE_SECONDS, ProgressLine, report
from tinsmith.cli.main import main
from tinsmith.cli.subject import inherited
from tinsmith.errors import RunError, ServiceError
from tinsmith.records.evaluation import EvalResult, read_evaluations, write_evaluation
from tinsmith.records.rollout import RolloutRecord
from tinsmith.records.run import RunInfo, RunStatus
from tinsmith.runs.manager import Run

VALUES = {
    "eval/problems": 2.0,
    "eval/samples": 2.0,
    "eval/failed_rollouts": 1.0,
    "eval/reward": 0.5,
    "eval/reward_low": -0.2,
    "eval/reward_high": 1.2,
    "eval/pass@1": 0.5,
    "eval/pass@1_low": 0.1,
    "eval/pass@1_high": 0.9,
    "eval/pass@k": 1.0,
    "eval/pass@k_low": 0.2065,
    "eval/pass@k_high": 1.0,
    "eval/tokens": 3.5,
    "eval/cut_off": 0.25,
}
CONFIG = {"env": "MathConfig", "env.dataset": "arithmetic", "temperature": 1.0}


def result(**values) -> EvalResult:
    usual = {
        "kind": "run",
        "name": "anvil",
        "step": 6,
        "model_path": "tinker://x",
        "model": "tinsmith/tiny",
        "config": CONFIG,
        "command": ["tinsmith", "eval", "anvil"],
        "metrics": VALUES,
        "seconds": 2.0,
        "created_at": 1.0,
    }
    return EvalResult(**{**usual, **values})


def record(problem: str, member: int, reward: float | None, said: str = "7", error=None):
    logs = {"question": f"What is {problem}?", "answer": said, "expected": "7"}
    turns = [] if error else [{"role": "assistant", "text": said, "logs": logs}]
    metrics = {} if reward is None else {"correct": reward}
    return RolloutRecord(
        6, problem, member, "eval", 6, reward, None, "done", turns, metrics, error=error
    )


ROLLOUTS = [
    record("3 + 4", 0, 1.0),
    record("3 + 4", 1, 0.0, "\x1b[31m8\nand [bold]more"),
    record("4 + 3", 0, 1.0),
    record("4 + 3", 1, None, error="boom \x07"),
]


def test_the_whole_report():
    assert report(result(), ROLLOUTS, 3) == [
        "anvil step 6 · arithmetic · 2 held-out problems, 2 rollouts each · temperature 1",
        "reward   0.500   (-0.200 to 1.200)   with 95 % confidence",
        "pass@1   50.0 %  (10.0 % to 90.0 %)",
        "pass@2   100.0 % (20.6 % to 100.0 %)",
        "tokens   3.5 a rollout, 25 % cut off",
        "failed   1 of 4 rollouts",
        "         boom ",
        "time     2.0 s, 2 rollouts/s",
        'right    What is 3 + 4?  it says "7"',
        'right    What is 4 + 3?  it says "7"',
        'wrong    What is 3 + 4?  it says "8⏎and [bold]more", right is "7"',
    ]


def test_as_many_samples_as_asked_for():
    assert not any(line.startswith(("right", "wrong")) for line in report(result(), ROLLOUTS, 0))
    assert sum(line.startswith("right") for line in report(result(), ROLLOUTS, 1)) == 1


def test_one_rollout_of_one_problem_has_no_interval():
    values = {"eval/problems": 1.0, "eval/samples": 1.0, "eval/failed_rollouts": 0.0}
    lines = report(result(kind="model", metrics={**values, "eval/reward": 0.5}), [], 1)
    assert lines[:2] == [
        "anvil · arithmetic · 1 held-out problem · temperature 1",
        "reward   0.500",
    ]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_that_changes():
    screen = Screen()
    line = ProgressLine(screen, clock=lambda: 0.0)
    line(0, 10)
    line(5, 10)
    line.clear()
    assert screen.getvalue().count("\r\x1b[K") == 3
    assert "5/10 rollouts" in screen.getvalue()
    assert "\n" not in screen.getvalue()


def test_a_file_gets_a_line_now_and_then():
    now = [0.0]
    file = io.StringIO()
    line = ProgressLine(file, clock=lambda: now[0])
    for done in range(11):
        line(done, 10)
        now[0] += LINE_SECONDS / 2.5
    line.clear()
    assert [text.split()[0] for text in file.getvalue().splitlines()] == [
        "0/10",
        "3/10",
        "6/10",
        "9/10",
        "10/10",
    ]


# ── records ──


def test_evaluations_are_numbered_and_come_back(tmp_path: Path):
    first = write_evaluation(tmp_path, result(), ROLLOUTS)
    second = write_evaluation(tmp_path, result(step=8), [])
    assert [first.name, second.name] == ["001", "002"]
    assert read_evaluations(tmp_path) == [result(), result(step=8)]
    assert read_evaluations(tmp_path / "nothing") == []
    (second / "result.json").write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        read_evaluations(tmp_path)


def test_a_run_hands_down_what_an_evaluation_knows():
    words = ["batch_size=8", "eval_size=5", "env=MathConfig", "env.max_tokens=6", "optim.lr=1"]
    info = RunInfo("a", "a", RunStatus.FINISHED, ["tinsmith", "train", *words], {})
    run = Run(Path("a"), info)
    known = ["env", "eval_size", "seed"]
    assert inherited(run, known, []) == ["eval_size=5", "env=MathConfig", "env.max_tokens=6"]
    # The settings of one environment mean nothing to another.
    assert inherited(run, known, ["env=Other"]) == ["eval_size=5"]


def test_help_is_about_evaluating(capsys):
    assert main(["eval", "--help"]) == 0
    shown_help = capsys.readouterr().out
    assert "what to evaluate" in shown_help
    assert "OPENAI_API_KEY" in shown_help
    assert "what to train" not in shown_help
    assert main(["eval"]) == 0


# ── conversations ──


class Model:
    """Answers with how many messages it was shown; knows a longer conversation by its own tokens."""

    version = 0

    def __init__(self, *, extends: bool) -> None:
        self.extends, self.broken, self.cut = extends, False, False
        self.shown: list[list[int]] = []

    def prompt(self, messages) -> Observation:
        return Observation(list(range(len(messages))))

    def extend(self, observation, action, messages) -> Observation | None:
        if not self.extends:
            return None
        return Observation([*observation.tokens_T, *action.tokens_T, 77])

    def parse(self, action: Action) -> str:
        return str(action.tokens_T[0])

    async def __call__(self, observation, *, max_tokens, samples, seed) -> list[Action]:
        if self.broken:
            raise ValueError("too long")
        self.shown.append(observation.tokens_T)
        count = len(observation.tokens_T)
        return [Action([count], [0.0], "length" if self.cut else "stop")]


def conversation(model: Model, system: str | None = None) -> Conversation:
    return Conversation(model, model, 9, 1, system)  # type: ignore[arg-type]


async def test_a_conversation_goes_on_by_its_own_tokens():
    model = Model(extends=True)
    talk = conversation(model)
    await talk.say("a")
    await talk.say("b")
    assert model.shown == [[0], [0, 1, 77]]


async def test_or_is_written_anew():
    model = Model(extends=False)
    talk = conversation(model, "Be short.")
    assert await talk.say("a") == "2"
    await talk.say("b")
    talk.reset()
    await talk.say("c")
    assert [len(tokens) for tokens in model.shown] == [2, 4, 2]


async def test_an_answer_without_its_end_is_written_anew():
    model = Model(extends=True)
    model.cut = True
    talk = conversation(model)
    await talk.say("a")
    assert talk.cut_off
    await talk.say("b")
    assert model.shown[1] == [0, 1, 2]


async def test_a_turn_that_fails_was_never_taken():
    model = Model(extends=False)
    talk = conversation(model)
    await talk.say("a")
    model.broken = True
    with pytest.raises(ServiceError, match="no answer came: ValueError: too long"):
        await talk.say("b")
    model.broken = False
    await talk.say("c")
    assert [len(tokens) for tokens in model.shown] == [1, 3]


def test_words_keep_their_lines_and_lose_their_tricks():
    assert shown("one\r\n\x1b[2Jtwo\n\nthree\u202e") == "one\ntwo\n\nthree"
