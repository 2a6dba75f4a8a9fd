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
        "groups   mixed 56 · all right 31 · all wrong 13 · trained on 184 of 400 rollouts",
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


def test_all_that_a_run_may_measure_is_shown(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run")
    writer.rollouts(
        [
            synthetic.rollout(3, "p1", 0, "75", error="the sandbox is gone", reward=None),
            synthetic.rollout(3, "p1", 1, "75", error="too slow", reward=None),
            synthetic.rollout(3, "p1", 2, "75", retried=["too slow", "odd"]),
        ]
    )
    values = synthetic.metrics(
        3, time__waiting=0.321, time__sampler_waiting=2.04, time__trainer_waiting=0.5, time__sample=3.0,
        staleness=1.25, staleness_max=2.0, groups__resampled=12.0, groups__stale=3.0, retried_rollouts=5.0,
        failed_rollouts=3.0, kl_base=0.02, ratio=1.01, clipped=0.05, updates=4.0, epoch=1.5, lr=5e-5,
    )  # fmt: skip
    writer.metrics(3, values)
    follower = RunFollower(tmp_path / "run")
    shown = drawn(follower, width=200)
    for words in (
        "all wrong 13 · 12 resampled · 3 thrown away as too old · trained on 184 of 400 rollouts",
        "rollouts 3 failed · 5 tried again · mostly: too slow (×2)",
        "KL 0.0004 · KL from the base 0.02 · entropy 1.31 · ratio 1.01 · clipped 5.0 % · grad 0.42",
        "weights 1.25 steps old (at most 2) · lr 5e-5 ██▅ · 4 updates · epoch 1.50",
        "waiting 32 % (sampler 2.0 s, trainer 0.5 s) · step: sample 3.0 s",
        "look     failed_rollouts 3: some rollouts failed",
    ):
        assert words in shown
    narrow = drawn(follower, width=60)
    for words in ("3 thrown away as too old", "weights 1.25 steps old", "4 updates"):
        assert words in narrow, "what does not fit goes on the next line"
    told = LineView(rollouts=follower.rollouts).update(follower.poll())
    step = next(line for line in told if line.startswith("step 3/4"))
    for words in (
        "| 3 failed | 5 tried again | 12 resampled | 3 too old |",
        "kl_base 0.02",
        "staleness 1.25",
        "waiting 32 %",
        "lr 5e-5",
        "mostly: too slow (×2)",
    ):
        assert words in step


def test_what_trends_badly_is_told(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run")
    writer.metrics(3, synthetic.metrics(3, entropy=0.14, groups__mixed=45.0))
    follower = RunFollower(tmp_path / "run")
    assert "look" not in drawn(follower), "0.14 of 1.31 and 45 of 89 are just enough"
    writer.metrics(4, synthetic.metrics(4, entropy=0.12, groups__mixed=43.0))
    shown = drawn(follower, color=True, width=200)
    assert "entropy 0.12 nats: less than a tenth of its first value" in shown
    assert "\x1b[33mentropy 0.12" in shown
    assert "groups/mixed 43: more than half of the problems teach nothing" in shown
    assert "\x1b[33mmixed 43" in shown


def test_evaluations_are_points_with_their_intervals(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run")
    for step, reward in ((3, 0.8), (4, 0.6)):
        writer.checkpoint(step, f"tinker://m/weights/{step}", None, {})
        writer.metrics(
            step,
            synthetic.metrics(step)
            | {
                "eval/reward": reward,
                "eval/reward_low": reward - 0.05,
                "eval/reward_high": reward + 0.05,
                "eval/pass@1": reward,
                "eval/pass@1_low": reward - 0.06,
                "eval/pass@1_high": reward + 0.06,
                "eval/pass@k": 0.9,
                "eval/samples": 4.0,
                "eval/problems": 200.0,
            },
        )
    follower = RunFollower(tmp_path / "run")
    shown = drawn(follower, width=200)
    assert (
        "held out 0.18 at step 0 → 0.60 [0.55–0.65] at step 4 ▂▇▅   pass@1 60 % [54–66 %]   pass@4 90 %   "
        "best 0.80 at step 3 (saved)   (200 problems never trained on)"
    ) in shown
    told = LineView().update(follower.poll())
    assert (
        "held out after step 3: reward 0.80 over 200 problems | pass@1 80 % [74–86 %] | pass@4 90 %"
        in told
    )
    writer.finish(RunStatus.FINISHED)
    assert last_words(tmp_path / "run")[:2] == [
        "reward 0.18 → 0.60 in 4 steps (mean over 200 held-out problems, before and after)",
        "held out pass@1 60 % [54–66 %] · pass@4 90 % · best 0.80 at step 3 (saved)",
    ]


def test_a_run_that_is_not_judged_by_reward(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    start = synthetic.info("run", command=["tinsmith", "sft", "data=x.jsonl"])
    writer = RunWriter(tmp_path / "run", start, clock=synthetic.Clock())
    writer.metrics(0, {"eval/nll": 2.5, "eval/conversations": 20.0})
    for step, nll in ((1, 2.4), (2, 1.2)):
        writer.metrics(
            step,
            {"nll": nll, "conversations": 32.0, "trained_tokens": 1500.0, "lr": 1e-4, "time/step": 2.0},
        )  # fmt: skip
    writer.metrics(3, {"nll": 1.1, "time/step": 2.0, "eval/nll": 1.3, "eval/conversations": 20.0})
    follower = RunFollower(tmp_path / "run")
    shown = drawn(follower)
    assert "nll      1.10 █▁▁" in shown
    assert (
        "held out 2.50 at step 0 → 1.30 at step 3 █▁   (20 conversations never trained on)" in shown
    )
    assert "groups" not in shown
    told = LineView().update(follower.poll())
    assert "held out after step 0: nll 2.50 over 20 conversations" in told
    assert "step 1/4 | nll 2.40 | 2.0 s | 6s left" in told
    writer.finish(RunStatus.FINISHED)
    assert last_words(tmp_path / "run")[0] == (
        "nll 2.50 → 1.30 in 3 steps (mean over 20 held-out conversations, before and after)"
    )


def test_a_step_whose_rollouts_all_failed_is_still_a_step(tmp_path: Path) -> None:
    writer = synthetic.running(tmp_path / "run")
    writer.metrics(3, {"rollouts": 8.0, "failed_rollouts": 8.0, "time/step": 1.0})
    follower = RunFollower(tmp_path / "run")
    shown = drawn(follower)
    assert "reward   none ▂▄" in shown
    assert "update   none: no signal" in shown
    assert any(line.startswith("step 3/4 | reward none") for line in LineView().update(follower.poll()))  # fmt: skip


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
        "step 1/4 | reward 0.20 | correct 20 % | cut off 1.2 % | mixed 56 of 100"
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
    assert later[2].startswith("look at step 3: cut_off 50 %: more than 10 %")
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
        "         tinsmith chat calm-anvil",
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
