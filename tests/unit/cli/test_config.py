"""Every wrong word on the command line is answered with one sentence that helps."""

from __future__ import annotations

import pytest

from tinsmith.cli.config import flat, help_text, keys, parse
from tinsmith.cli.main import main
from tinsmith.errors import ConfigError
from tinsmith.rl.config import EMBEDDED_LR


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("batchsize=3", "there is no setting 'batchsize'. Did you mean batch_size?"),
        ("env.datset=x", "there is no setting 'env.datset'. Did you mean env.dataset?"),
        ("optim.lrr=3", "there is no setting 'optim.lrr'. Did you mean optim.lr?"),
        ("lr=3", "there is no setting 'lr'. Did you mean optim.lr?"),
        ("zzz=3", "there is no setting 'zzz'. `tinsmith train --help` lists every key."),
        ("env=MathConfg", "Did you mean MathConfig?"),
        ("env.dataset=arithmetc", "env.dataset must be one of arithmetic (got 'arithmetc')"),
        (
            "loss_fn=ppoo",
            "loss_fn must be one of importance_sampling, ppo (got 'ppoo'). Did you mean ppo?",
        ),
        ("adv_estimator=grp", "adv_estimator must be one of default, grpo, rloo"),
        ("batch_size=abc", "batch_size must be a whole number (got 'abc')."),
        ("batch_size=1.5", "batch_size must be a whole number (got '1.5')."),
        ("batch_size=", "batch_size must be a whole number (got '')."),
        ("batch_size=0", "batch_size must be at least 1 (got 0)."),
        ("group_size=1", "group_size must be at least 2"),
        ("num_batches=0", "num_batches must be at least 1"),
        ("lora_rank=-4", "lora_rank must be at least 1"),
        ("save_every=-1", "save_every must be at least 0"),
        ("seed=-1", "seed must be at least 0"),
        ("env.max_tokens=0", "env.max_tokens must be at least 1"),
        ("optim.lr=nan", "optim.lr must be a number or None (got 'nan')."),
        ("optim.lr=-1", "optim.lr must be a finite number above 0"),
        ("optim.beta1=1", "optim.beta1 must be in [0, 1)"),
        ("optim.eps=0", "optim.eps must be a finite number above 0"),
        ("temperature=inf", "temperature must be a finite number above 0"),
        ("wandb.enabled=yes", "wandb.enabled must be True or False (got 'yes')."),
        ("model_name=", "model_name must not be empty."),
        (
            "batch_size",
            "settings are written key=value (got 'batch_size'). Did you mean batch_size=...?",
        ),
        ("=3", "settings are written key=value"),
    ],
)
def test_a_wrong_word_is_a_sentence_and_exit_code_2(word, sentence, capsys):
    with pytest.raises(ConfigError) as caught:
        parse([word])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert main(["train", word]) == 2
    assert sentence in capsys.readouterr().err


def test_the_first_command_of_the_readme():
    words = ["env=MathConfig", "env.dataset=arithmetic", "batch_size=100", "group_size=4"]
    config = parse(words)
    assert (config.batch_size, config.group_size, config.env.dataset) == (100, 4, "arithmetic")


@pytest.mark.parametrize("word", ["--batch_size=3", "batch_size=3"])
def test_dashes_are_forgiven(word):
    assert parse([word]).batch_size == 3


def test_the_last_of_two_wins_and_values_may_hold_equals_signs():
    config = parse(["seed=1", "seed=2", "log_path=a=b"])
    assert (config.seed, config.log_path) == (2, "a=b")


def test_the_learning_rate_depends_on_the_model_unless_given():
    assert flat(parse([]))["optim.lr"] == EMBEDDED_LR
    assert flat(parse(["model_name=Qwen/Qwen3-8B"]))["optim.lr"] == 1e-4
    assert flat(parse(["optim.lr=5e-4"]))["optim.lr"] == 5e-4


def test_a_models_directory_is_made_absolute(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse(["model_name=model"]).base_model == str(tmp_path / "model")


def test_a_directory_named_like_the_embedded_model_does_not_hide_it(tmp_path, monkeypatch):
    (tmp_path / "tinsmith" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse([]).base_model == "tinsmith/tiny"


def test_help_names_every_key_with_its_meaning():
    text = help_text()
    for key in keys():
        assert f"{key.name}=" in text
        assert key.doc, key.name
    assert main(["train", "--help"]) == 0
