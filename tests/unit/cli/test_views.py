"""What a run looks like: the panel, the lines without a terminal, and the last words."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.cli import synthetic
from tinsmith.cli import panel
from tinsmith.cli.lines import LineView
from tinsmith.cli.panel import Body, Frame
from tinsmith.cli.summary import summary
from tinsmith.cli.terminal import clean
from tinsmith.cli.words import bar, duration, number, share, sparkline
from tinsmith.records.run import RunStatus
from tinsmith.records.writer import RunWriter
from tinsmith.runs.follow import RunFollower
from tinsmith.runs.manager import RunManager

HOSTILE = '[red]x[/red]\x1b[2J\x1b]0;title\x07\r\n"\x9b31m\u202eabc[/]'


def drawn(
    follower: RunFollower,
    *,
    width: int = 110,
    height: int = 40,
    color: bool = False,
    **changes: object,
) -> str:
    """The panel as a terminal of that size would show it."""
    snapshot = follower.poll()
    steps = snapshot.steps
    changes.setdefault("rollouts", follower.rollouts(steps[-1]["step"]) if steps else ())
    frame = Frame(width=width, height=height, now=synthetic.START + 20, **changes)  # type: ignore[arg-type]
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=color, color_system="standard" if color else None, highlight=False
    )  # fmt: skip
    console.print(panel.draw(snapshot, frame))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_section_is_there(tmp_path: Path) -> None:
    synthetic.running(tmp_path / "calm-anvil")
    shown = drawn(RunFollower(tmp_path / "calm-anvil"))
    for words in (
        "run      calm-anvil · arithmetic · tinsmith/tiny + LoRA r32 · local service (cpu, 127.0.0.1:7411)",
        "changed  env.dataset=arithmetic  group_size=4",
        "q leave (the run goes on) · s stop",
        "step 2/4",
        "4.1 s/step",
        "sample 312/400 ━━━━━━━━━━━━━━━╸────",
        "reward   0.40 ▂▄   correct 40 %   well-formed 98 %   cut off 1.2 %   tokens 3.8 ▄▄",
        "groups   mixed 46 · all right 41 · all wrong 13     trained on 184 of 400 rollouts",
        "update   sampler≠trainer KL 0.0004 · entropy 1.31 · grad 0.42 · lr 0.0001",
        "speed    sample 1.9k tok/s · train 3.2k tok/s",
        "held out 0.18 at step 0   (200 problems never trained on)",
        'What is 47 + 38?                      ■ ■ □ ■   wrong: "75" −0.75  right: "85" +0.25',
        "■ ■ ■ ■   no signal: all alike",
        "note     saved step 2",
    ):
        assert words in shown
    assert "look" not in shown


def test_a_metric_outside_its_range_is_yellow_with_the_reason(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run")
    writer.metrics(3, synthetic.metrics(3, cut_off=0.5))
    shown = drawn(RunFollower(tmp_path / "run"), color=True)
    assert "\x1b[33mcut off 50 %" in shown
    assert "raise env.max_tokens" in shown
    assert "\x1b[33mwell-formed" not in shown


def test_the_panel_never_exceeds_the_terminal(tmp_path: Path) -> None:
    synthetic.running(tmp_path / "run")
    for height in (2, 5, 10, 14, 17, 24):
        for width in (20, 60, 200):
            for body in Body:
                shown = drawn(
                    RunFollower(tmp_path / "run"),
                    width=width,
                    height=height,
                    body=body,
                    log=["x"] * 99,
                )
                lines = shown.rstrip("\n").split("\n")
                assert len(lines) < height, (height, width, body)
                assert max(map(len, lines)) <= width


def test_hostile_text_is_shown_as_text(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run", changed=[f"x={HOSTILE}"], service=HOSTILE)
    logs = {"question": HOSTILE, "answer": HOSTILE}
    turns = [{"role": "assistant", "text": HOSTILE, "logs": logs}]
    writer.rollouts(
        [synthetic.rollout(3, HOSTILE, g, "75", turns=turns, reward=float(g), error=HOSTILE if g > 2 else None) for g in range(4)]
    )  # fmt: skip
    writer.metrics(3, synthetic.metrics(3))
    writer.event("warned", message=HOSTILE)
    writer.progress(4, HOSTILE, 1, 2)
    follower = RunFollower(tmp_path / "run")
    for body in Body:
        shown = drawn(follower, width=300, body=body, log=[HOSTILE])
        assert "[red]x[/red]" in shown
        assert not set(shown) & {"\x1b", "\x9b", "\r", "\x07", "\u202e"}
    for line in LineView().update(follower.poll()):
        assert line == clean(line)


def test_log_and_rollouts_take_the_place_of_the_examples(tmp_path: Path) -> None:
    synthetic.running(tmp_path / "run")
    follower = RunFollower(tmp_path / "run")
    shown = drawn(follower, body=Body.LOG, log=[f"line {n}" for n in range(99)])
    assert "line 98" in shown
    assert "line 1\n" not in shown
    assert "no signal" not in shown
    shown = drawn(follower, body=Body.ROLLOUTS)
    assert "□   0.00  −0.75  75" in shown


def test_a_question_takes_the_place_of_the_keys(tmp_path: Path) -> None:
    synthetic.running(tmp_path / "run")
    shown = drawn(RunFollower(tmp_path / "run"), prompt="stop the run? y/n")
    assert "stop the run? y/n" in shown
    assert "q leave" not in shown


def test_a_run_that_starts_shows_a_checklist_and_what_the_model_says_before(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    start = synthetic.info("run", config={}, changed=[], status=RunStatus.STARTING, service="local")
    writer = RunWriter(tmp_path / "run", start, clock=synthetic.Clock())
    follower = RunFollower(tmp_path / "run")
    shown = drawn(follower)
    assert "nothing: every setting is the default" in shown
    assert "run · this machine" in shown
    assert "start        … service   … model and problems" in shown
    writer.progress(0, "load model")
    assert "✓ service   … model and problems" in drawn(follower)
    writer.event("ready", message="9,000 problems to train on")
    writer.progress(0, "evaluate", 50, 200)
    shown = drawn(follower)
    assert "✓ service   ✓ model and problems" in shown
    assert "evaluate 50/200 ━━━━━" in shown
    assert "note     9,000 problems to train on" in shown
    writer.rollouts([synthetic.rollout(0, "h1", 0, "75", split="eval", advantage=None)])
    writer.metrics(0, {"eval/reward": 0.18})
    shown = drawn(follower, rollouts=follower.rollouts(0))
    assert 'before   What is 47 + 38?  it says "75", right is "85"' in shown


def test_many_changed_settings_wrap(tmp_path: Path) -> None:
    synthetic.running(tmp_path / "run", changed=[f"setting_{n}={n}" for n in range(12)])
    shown = drawn(RunFollower(tmp_path / "run"), width=60)
    for n in range(12):
        assert f"setting_{n}={n}" in shown


# ── lines ────────────────────────────────────────────────────────────────────────────────────


def test_lines_tell_everything_once_and_in_order(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run")
    follower, view = RunFollower(tmp_path / "run"), LineView()
    first = view.update(follower.poll())
    assert first[0].startswith("run · arithmetic")
    assert first[3] == "held out after step 0: reward 0.18 over 200 problems"
    assert first[4].startswith(
        "step 1/4 | reward 0.20 | correct 20 % | cut off 1.2 % | mixed 46 of 100"
    )
    assert first[4].endswith("| 4.1 s | 12s left")
    assert [line.split(" |")[0] for line in first[5:]] == ["step 2/4", "saved step 2"]
    assert view.update(follower.poll()) == []
    writer.event("warned", message="the stove is hot")
    writer.metrics(3, synthetic.metrics(3, cut_off=0.5))
    writer.metrics(4, synthetic.metrics(4, cut_off=0.5))
    later = view.update(follower.poll())
    assert later[0] == "step 2: the stove is hot"
    assert later[1].startswith("step 3/4")
    assert later[2].startswith("look at step 3: cut_off 0.5: more than 10 %")
    assert len(later) == 4, "a concern is told once"


def test_lines_of_an_earlier_attempt_are_not_repeated(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run")
    writer.update(started_at=synthetic.START + 100, attempt=2)
    view = LineView()
    assert len(view.update(RunFollower(tmp_path / "run").poll())) == 3
    assert view.update(RunFollower(tmp_path / "run").poll()) == []


# ── last words ───────────────────────────────────────────────────────────────────────────────


def last_words(directory: Path) -> list[str]:
    follower = RunFollower(directory)
    return summary(follower.poll(), follower.reader)


def test_the_summary_of_a_finished_run(home: Path) -> None:
    synthetic.finished(home / "runs" / "calm-anvil")
    lines = last_words(home / "runs" / "calm-anvil")
    assert lines == [
        "reward 0.18 → 0.97 in 4 steps (mean over 200 held-out problems, before and after)",
        "example  What is 47 + 38? was 75, now 85",
        f"run      {home / 'runs' / 'calm-anvil'}",
        "next     tinsmith runs show calm-anvil",
        "         tinsmith runs watch calm-anvil",
        "         tinsmith train env=MathConfig env.dataset=arithmetic group_size=4 seed=4",
    ]


def test_a_run_elsewhere_is_named_by_its_path_until_it_is_registered(tmp_path: Path) -> None:
    directory = tmp_path / "else where"
    synthetic.finished(directory)
    assert f"next     tinsmith runs show '{directory}'" in last_words(directory)
    RunManager().register(directory)
    assert "next     tinsmith runs show 'else where'" in last_words(directory)


def test_without_held_out_problems_the_training_reward_is_told(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run", steps=3)
    writer.finish(RunStatus.FINISHED)
    assert last_words(tmp_path / "run")[0] == (
        "reward 0.20 → 0.60 in 3 steps (training problems, first and last step)"
    )


def test_a_failed_run_says_why_and_where_its_log_is(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run")
    writer.finish(RunStatus.FAILED, "the disk is full.\x1b[2J")
    lines = last_words(tmp_path / "run")
    assert lines[0] == "run failed at step 2/4: the disk is full."
    assert lines[1].endswith("logs/latest/train.log")


@pytest.mark.parametrize("log_path", [(), ("log_path=old",)])
def test_a_lost_run_says_so_and_how_to_resume(tmp_path: Path, log_path: tuple[str, ...]) -> None:
    directory = tmp_path / "my run"
    command = ["tinsmith", "train", *log_path, "batch_size=3"]
    writer = synthetic.running(directory, pid=2**22 + 1, pid_started_at=1.0, command=command)
    log = writer.layout.start_attempt(1)
    log.write_text("a\nlast words\n")
    lines = last_words(directory)
    assert "vanished without finishing" in lines[0]
    assert "  last words" in lines
    resume = next(line for line in lines if line.startswith("resume"))
    assert shlex.split(resume)[1:] == ["tinsmith", "train", "batch_size=3", f"log_path={directory}"]


# ── numbers ──────────────────────────────────────────────────────────────────────────────────


def test_numbers_as_people_read_them() -> None:
    assert [duration(s) for s in (-1, 59.9, 340, 7500)] == ["0s", "59s", "5m40s", "2h05m"]
    assert [share(v) for v in (0, 0.012, 0.0996, 0.98, 1)] == [
        "0 %",
        "1.2 %",
        "10 %",
        "98 %",
        "100 %",
    ]
    assert [number(v) for v in (1e-5, 0.42, 1234567.0, 0)] == ["1e-5", "0.42", "1,234,567", "0"]
    assert sparkline([0, 0.5, 1]) == "▁▅█"
    assert sparkline([-5, 5]) == "▁█"
    assert sparkline([]) == ""
    assert [bar(d, 4, 4) for d in (0, 1.5, 4, 9)] == ["────", "━╸──", "━━━━", "━━━━"]
    assert bar(0, 0, 3) == "───"
