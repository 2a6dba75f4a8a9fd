"""Starting runs of both kinds: what may change between attempts, what is refused, what is reproduced."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tinsmith.cli.main import main
from tinsmith.cli.rl_job import RlJob
from tinsmith.cli.sft_job import SftJob
from tinsmith.cli.start import is_complete, refuse_other_config
from tinsmith.errors import ConfigError
from tinsmith.records.layout import RunLayout
from tinsmith.records.run import RunInfo, RunStatus, write_run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    lines = [json.dumps({"question": f"q{at}", "answer": "a"}) for at in range(20)]
    path.write_text("\n".join(lines))
    return path


def earlier(directory: Path, job: RlJob | SftJob, status: RunStatus = RunStatus.STOPPED) -> RunInfo:
    """What an attempt of the job that trained a little left behind."""
    directory.mkdir(exist_ok=True)
    info = RunInfo(
        id="anvil",
        name="anvil",
        status=status,
        command=job.reproducing_command(),
        config=json.loads(json.dumps(job.flat())),
        total_steps=job.total_steps,
        step=job.total_steps if status is RunStatus.FINISHED else 1,
    )
    write_run(directory, info)
    RunLayout(directory).metrics.write_text('{"step": 1}\n')
    return info


@pytest.mark.parametrize(
    "word",
    [
        "num_batches=99",
        "save_every=1",
        "keep_last=3",
        "eval_every=7",
        "tensorboard=true",
        "rollout.concurrent=5",
        "base_url=http://elsewhere",
        "wandb.project=other",
        "log_path=elsewhere",
    ],
)
def test_what_may_change_between_attempts(tmp_path, word):
    before = earlier(tmp_path / "anvil", RlJob([]))
    refuse_other_config(before, RlJob([word]), tmp_path / "anvil")


@pytest.mark.parametrize("word", ["eval_size=7", "rollout.retries=5", "seed=1", "optim.lr=0.5"])
def test_what_may_not(tmp_path, word):
    before = earlier(tmp_path / "anvil", RlJob([]))
    with pytest.raises(ConfigError, match=f"{word.split('=')[0]} was .*choose another log_path"):
        refuse_other_config(before, RlJob([word]), tmp_path / "anvil")


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_length_is_fixed_when_the_learning_rate_follows_it(tmp_path, data, schedule):
    word = f"optim.schedule={schedule}"
    before = earlier(tmp_path / "anvil", RlJob([word, "num_batches=10"]))
    refuse_other_config(before, RlJob([word, "num_batches=10"]), tmp_path / "anvil")
    with pytest.raises(
        ConfigError, match=r"learning rates of the steps already done.*num_batches=10"
    ):
        refuse_other_config(before, RlJob([word, "num_batches=11"]), tmp_path / "anvil")
    before = earlier(tmp_path / "anvil", SftJob([f"data={data}", word]))
    longer = SftJob([f"data={data}", word, "num_epochs=2"])
    with pytest.raises(ConfigError, match=r"Give num_epochs=1, or"):
        refuse_other_config(before, longer, tmp_path / "anvil")


def test_a_run_that_never_began_may_have_other_settings(tmp_path):
    before = earlier(tmp_path / "anvil", RlJob([]), RunStatus.FAILED)
    RunLayout(tmp_path / "anvil").metrics.unlink()
    refuse_other_config(before, RlJob(["seed=1"]), tmp_path / "anvil")


def test_a_run_of_the_other_kind_is_refused(tmp_path, data):
    before = earlier(tmp_path / "anvil", RlJob([]))
    with pytest.raises(ConfigError, match="was started by `tinsmith train`, so `tinsmith sft`"):
        refuse_other_config(before, SftJob([f"data={data}"]), tmp_path / "anvil")


def test_a_finished_run_is_complete_until_it_is_made_longer(tmp_path, data):
    words = [f"data={data}", "batch_size=4"]
    done = earlier(tmp_path / "anvil", SftJob(words), RunStatus.FINISHED)
    assert is_complete(done, SftJob(words))
    assert not is_complete(done, SftJob([*words, "num_epochs=2"]))
    assert is_complete(done, SftJob([*words, "num_batches=2"]))
    assert not is_complete(done.changed_to(status=RunStatus.STOPPED), SftJob(words))


def test_a_finished_run_is_said_to_be_finished(tmp_path, data, capsys):
    words = [f"data={data}", f"log_path={tmp_path / 'anvil'}"]
    earlier(tmp_path / "anvil", SftJob(words), RunStatus.FINISHED)
    assert main(["sft", *words]) == 0
    assert "To train further, raise num_epochs;" in capsys.readouterr().out


def test_the_command_of_a_run_makes_it_again_from_anywhere(tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = SftJob(["data=data.jsonl", "log_path=here", "batch_size=4", "dry_run=true"])
    command = job.reproducing_command()
    assert command[:2] == ["tinsmith", "sft"]
    monkeypatch.chdir("/")
    again = SftJob(shlex.split(shlex.join(command))[2:])
    fixed = ("log_path", "dry_run")
    assert {k: v for k, v in again.flat().items() if k not in fixed} == {
        k: v for k, v in job.flat().items() if k not in fixed
    }
    assert again.config.log_path is None


def test_dry_run_shows_the_plan_and_leaves_nothing(tmp_path, data, capsys):
    assert main(["sft", f"data={data}", f"log_path={tmp_path / 'anvil'}", "dry_run=true"]) == 0
    shown = capsys.readouterr().out
    assert "19 to train on, 1 held out, 0 bad lines" in shown
    assert "1 of 19 conversations" in shown
    assert not (tmp_path / "anvil").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "sft needs data=FILE.jsonl"),
        (["data=/nowhere.jsonl"], "there is no file /nowhere.jsonl"),
        (["data=DATA", "num_epoch=2"], "Did you mean num_epochs?"),
        (["data=DATA", "held_out=1"], "held_out must be a share from 0 to less than 1"),
        (["data=DATA", "num_batches=0"], "num_batches must be at least 1, or None"),
        (["data=DATA", "train_on=user"], "train_on must be"),
        (["data=DATA", "model_name=tinsmith/tinny"], "Did you mean tinsmith/tiny?"),
        (["data=BAD"], "line 2: not JSON"),
    ],
)
def test_what_cannot_work_is_refused_before_there_is_a_run(words, sentence, tmp_path, data, capsys):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "a", "answer": "b"}\n{\n')
    given = [word.replace("DATA", str(data)).replace("BAD", str(bad)) for word in words]
    assert main(["sft", f"log_path={tmp_path / 'anvil'}", *given]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "anvil").exists()


def test_help_lists_every_key(capsys):
    assert main(["sft", "--help"]) == 0
    shown = capsys.readouterr().out
    for key in ("data=", "train_on=", "num_epochs=1", "held_out=0.05", "optim.schedule=", "wandb."):
        assert key in shown
    assert "group_size" not in shown
