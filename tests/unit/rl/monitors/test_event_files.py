"""TensorBoard's own reader finds what was written, and what a model wrote stays text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html

from tests.unit.rl.monitors.conftest import open_run, rollout
from tinsmith.errors import ConfigError
from tinsmith.records.metrics import METRICS
from tinsmith.rl.config import WandbConfig
from tinsmith.rl.monitors import open_monitors
from tinsmith.rl.monitors.event_files import SHOWN, EventFiles, to_markdown
from tinsmith.rl.monitors.samples import shorten, to_sample

CONFIG = SimpleNamespace(wandb=WandbConfig(), tensorboard=True)


def read(directory: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in read(directory).Scalars(tag)]


def texts(directory: Path, tag: str) -> dict[int, str]:
    found = read(directory).Tensors(tag)
    return {point.step: point.tensor_proto.string_val[0].decode() for point in found}


def test_what_was_written_is_read_back(run, notes):
    monitors = open_monitors(CONFIG, run)
    for step in range(3):
        monitors.rollouts(step, [rollout(step, "eval")])
        monitors.metrics(step, {"reward": step / 4, "eval/reward": 0.5})
    monitors.finish("finished")
    folder = run.layout.tensorboard
    assert scalars(folder, "reward") == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert scalars(folder, "eval/reward") == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert "optim.lr=0.001" in texts(folder, "config")[0]
    assert "What is 1 + 1?" in texts(folder, "rollouts/eval")[2]
    metadata = read(folder).SummaryMetadata("reward")
    assert metadata.summary_description == METRICS["reward"].meaning
    assert notes("warned") == []
    assert notes("monitored") == [f"by TensorBoard: tensorboard --logdir {folder}"]


def test_each_step_can_be_seen_at_once(run):
    writing = EventFiles(run)
    for step in (1, 2):
        writing.metrics(step, {"reward": 0.5})
        assert len(scalars(run.layout.tensorboard, "reward")) == step
    writing.finish("finished")


def test_steps_that_are_done_again_are_shown_once(tmp_path):
    for attempt, (steps, value) in enumerate([(range(6), 0.25), (range(4, 8), 0.75)], 1):
        run = open_run(tmp_path, attempt=attempt, started_at=1e9 + attempt)
        monitors = open_monitors(CONFIG, run)
        for step in steps:
            monitors.rollouts(step, [rollout(step, "eval")])
            monitors.metrics(step, {"reward": value, f"env/only_{attempt}": 1.0})
        monitors.finish("stopped")
    folder = run.layout.tensorboard
    assert len(list(folder.iterdir())) == 2
    expected = [(step, 0.25 if step < 4 else 0.75) for step in range(8)]
    assert scalars(folder, "reward") == expected
    assert [step for step, _ in scalars(folder, "env/only_1")] == [0, 1, 2, 3]
    assert list(texts(folder, "rollouts/eval")) == list(range(8))


def test_an_attempt_that_came_to_no_step_voids_nothing(tmp_path):
    monitors = open_monitors(CONFIG, open_run(tmp_path, started_at=1e9))
    monitors.metrics(1, {"reward": 0.5})
    monitors.finish("stopped")
    open_monitors(CONFIG, open_run(tmp_path, attempt=2, started_at=2e9)).finish("failed")
    assert scalars(tmp_path / "tensorboard", "reward") == [(1, 0.5)]


def test_a_folder_that_cannot_be_made_is_a_sentence(run):
    run.layout.tensorboard.write_bytes(b"a file where the folder should be")
    with pytest.raises(ConfigError, match=r"cannot be written into .* leave tensorboard out"):
        open_monitors(CONFIG, run)


def test_a_missing_package_is_a_sentence(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r'Type: pip install "tinsmith\[tensorboard\]"'):
        open_monitors(CONFIG, run)
    assert not run.layout.tensorboard.exists()


def test_neither_torch_nor_tensorflow_is_loaded(tmp_path):
    """A package named tensorflow lies on the path; importing it would be heard of."""
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('tensorflow was imported')")
    script = (
        "import json, sys; from types import SimpleNamespace as S; from pathlib import Path\n"
        "from tests.unit.rl.monitors.conftest import open_run\n"
        "from tinsmith.rl.config import WandbConfig; from tinsmith.rl.monitors import open_monitors\n"
        f"run = open_run(Path({str(tmp_path / 'run')!r}))\n"
        "monitors = open_monitors(S(wandb=WandbConfig(), tensorboard=True), run)\n"
        "monitors.metrics(1, {'reward': 1.0}); monitors.finish('finished')\n"
        "print(json.dumps([name for name in ('torch', 'tensorflow', 'wandb') if name in sys.modules]))"
    )
    root = Path(__file__).parents[4]
    environment = {"PYTHONPATH": f"{tmp_path}:{root}", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_few_samples_fit_on_a_page(run):
    monitors = open_monitors(CONFIG, run)
    monitors.rollouts(1, [rollout(member=member) for member in range(30)])
    monitors.finish("finished")
    assert texts(run.layout.tensorboard, "rollouts/train")[1].count("#### ") == SHOWN


HOSTILE = [
    "![x](http://evil.example/pixel.png)",
    '<img src="http://evil.example/p.png">',
    "a\n\n<img src=x>\n\n<!-- \n\n![x](http://evil.example)",
    "```\n<script>alert(1)</script>\n```\n[a](javascript:alert(1))",
    "\n\n# Heading\n\n| a | b |\n|---|---|\n| ![x](y) | b |",
    "[x]: http://evil.example\n\n![x]",
    "<?php ?>\n\n<![CDATA[ ]]>\n\n<div>\n\n**bold** <http://evil.example>",
    "\t![x](y)\r![x](y)\x0b![x](y)\x0c![x](y)\x1c![x](y)\x85![x](y)\u2028![x](y)",
    "&lt;img src=x&gt; \x02wzxhzdk:0\x03 klzzwxh:0",
    "- item\n  ![x](y)\n1. ![x](y)\n> ![x](y)",
]


def check_harmless(text: str) -> None:
    turns = [{"text": text}, {"text": text, "logs": {"answer": text, "expected": text}}]
    record = rollout(turns=turns, problem_id=text, error=text or "failed", reward=None)
    html = markdown_to_safe_html(to_markdown([to_sample(record), to_sample(record)]))
    assert set(re.findall(r"</?(\w+)", html)) <= {"h4", "p", "pre", "code"}
    assert "<h4>1: failed, advantage +0.25</h4>" in html
    assert html.count("<h4>") == 2


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text):
    check_harmless(text)


MARKS = (
    "\n\n", "<!--", "-->", "<img src=x>", "![x](y)", "<script>", "[x]: y", "```", "~~~", "    ",
    "<div>", "</pre>", "</code>", "<![CDATA[", "<?", "]]>", "&lt;",
)  # fmt: skip
PIECES = st.sampled_from([*"\n\t <>![](){}`*_#-|&;:\"'=/\\", *MARKS])


@given(st.lists(PIECES | st.characters(codec="utf-8"), max_size=40).map("".join))
@example("")
def test_no_text_becomes_markup(text):
    check_harmless(text)


def test_what_is_shown_is_what_was_said():
    html = markdown_to_safe_html(to_markdown([to_sample(rollout())]))
    assert "<pre><code>What is 1 + 1?\n</code></pre>" in html
    assert shorten("What is 1 + 1?", 100) in html
