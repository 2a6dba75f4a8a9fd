"""dry_run tells what a run would do, with real figures where they can be had, and starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli import synthetic
from tinsmith.cli import plan
from tinsmith.cli.config import flat, parse
from tinsmith.cli.main import main
from tinsmith.cli.prompt_lengths import Problems, measure
from tinsmith.records.run import RunStatus

PROBLEMS = Problems(train=1000, held_out=100, mean_prompt=20.4, longest_prompt=31, how="measured")


def planned(*words: str, problems: Problems = PROBLEMS) -> str:
    config = parse(list(words))
    return " ".join(" ".join(plan.plan_lines(config, problems, plan.find_earlier(config))).split())


def test_the_command_prints_the_plan_and_starts_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    assert main(["train", "batch_size=100", "group_size=4", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    first, rest = shown.split("\n", 1)
    assert first == "changed       batch_size=100  group_size=4"
    rest = " ".join(rest.split())  # lines are as wide as the terminal
    for words in (
        "100 problems × 4 = 400 rollouts",
        "with the model's own tokenizer",
        "model weights",
        "counted in its files",
        "learning rate 0.001 at every step",
        "all settings",
        "evaluation and checkpoints",
        "Nothing was started.",
    ):
        assert words in rest
    for name in flat(parse([])):
        assert f"{name}=" in rest
    assert not home.exists(), "no service, no run directory, no file at all"


def test_prompts_are_measured_with_the_tokenizer_of_the_model() -> None:
    problems = measure(parse([]))
    assert problems.train > problems.held_out > 0
    # "What is 47 + 38?" in the template of the embedded model.
    assert 5 < problems.mean_prompt <= problems.longest_prompt < 40
    assert "own tokenizer" in problems.how


def test_prompts_are_guessed_for_a_model_that_is_not_here() -> None:
    problems = measure(parse(["model_name=nobody/no-model"]))
    assert "guessed" in problems.how
    assert problems.longest_prompt == 12  # 16 characters and what surrounds a message
    shown = planned("model_name=nobody/no-model", problems=problems)
    assert "memory (this machine's" in shown
    assert "not known, as the model's config.json is not here" in shown


def test_a_dataset_that_cannot_be_loaded_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    assert main(["train", f"env.dataset={tmp_path / 'none.jsonl'}", "dry_run=true"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tinsmith: ")
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("batch_size=10 group_size=4 num_batches=3", "10 problems × 4 = 40 rollouts;"),
        ("batch_size=10 group_size=4 env.max_tokens=5", "at most 200 sampled tokens"),
        ("batch_size=10 group_size=4 env.max_tokens=50 rollout.max_tokens=5", "at most 200 sampled"),
        ("batch_size=10 group_size=4 num_batches=3 env.max_tokens=5", "at most 600 sampled tokens"),
        ("batch_size=10 group_size=4 no_signal=resample", "(at most 120 with those sampled again)"),
        ("batch_size=10 group_size=4 num_batches=3", "3 steps, 120 rollouts; 2.4k prompt tokens"),
        ("batch_size=10 num_batches=150", "of which the run takes 1,500 (1.5 epochs); 100 held out"),
        ("num_batches=10 num_substeps=2 num_minibatches=3", "20 optimizer steps (2 a batch), each of 3"),
        ("optim.lr=1e-3", "learning rate 0.001 at every step"),
        (
            "optim.lr=1e-3 optim.schedule=linear optim.warmup_steps=2 num_batches=10",
            "linear, 2 steps of warm-up; step 1: 0.0005, step 2: 0.001, step 5: 0.00075, step 10: 0.000125",
        ),
        ("eval_size=0", "evaluation none"),
        ("num_batches=10 eval_every=4 eval_size=50 eval_samples=2", "50 held-out problems × 2 after step 0, 4, 8, 10: 4 times, 400 rollouts"),
        ("num_batches=10 eval_size=500", "100 held-out problems × 1 after step 0, 10: 2 times"),
        ("num_batches=10 save_every=4", "after step 4, 8, 10: 3"),
        ("num_batches=100 save_every=1 keep_last=2", "1, 2, 3, …, 100: 100; the last 2 and the best are kept"),
        ("num_batches=10 save_every=0", "after step 10: 1"),
        ("mode=async", "thrown away and come on top"),
        ("mode=async max_steps_off_policy=3", "with 4 copies for sampling"),
        ("", "time not known: no earlier run"),
        ("batch_size=4 group_size=2 rollout.concurrent=3", "3 rollouts of up to 63 tokens at once"),
        ("batch_size=4 group_size=2 rollout.concurrent=0", "8 rollouts of up to 63 tokens at once"),
        ("base_url=http://127.0.0.1:9", "memory (the service's; assumed: weights in bfloat16)"),
    ],
)  # fmt: skip
def test_what_the_plan_tells(words: str, told: str) -> None:
    assert told in planned(*words.split())


def test_an_earlier_run_tells_the_time(home: Path) -> None:
    same = flat(parse(["batch_size=10", "group_size=4"]))
    synthetic.running(home / "runs" / "old", config=same).finish(RunStatus.FINISHED)
    synthetic.running(home / "runs" / "other", config=same | {"model_name": "x/y"}).finish(
        RunStatus.FINISHED
    )
    shown = planned("batch_size=10", "group_size=4", "num_batches=100")
    assert "old took 4.1 s a step of 40 rollouts: about 6m50s in all" in shown
    assert "about 152 going by old" in shown, "3.8 tokens each of 40 rollouts"
    shown = planned("batch_size=20", "group_size=4", "num_batches=100")
    assert "about 8.2 s and 13m40s in all if it grows with the rollouts" in shown
    assert "not known" in planned("env.max_tokens=7")


def test_only_what_was_changed_comes_first(tmp_path: Path) -> None:
    config = parse(["seed=0", "batch_size=3", f"log_path={tmp_path}", "wandb.tags=a,b"])
    assert plan.settings_lines(config) == ["changed       batch_size=3  wandb.tags=a,b"]
    config = parse(["model_name=Qwen/Qwen3-8B", "env.dataset=gsm8k"])
    assert plan.settings_lines(config) == [
        "changed       model_name=Qwen/Qwen3-8B  env.dataset=gsm8k"
    ], "what follows from these two was not changed"
    assert plan.settings_lines(parse(["dry_run=true"])) == [
        "changed       nothing: every setting is the default"
    ]


def test_sizes_in_words() -> None:
    assert [plan.size(n) for n in (12, 3400, 5_600_000, 7_800_000_000)] == [
        "12 B",
        "3.4 kB",
        "5.6 MB",
        "7.8 GB",
    ]
