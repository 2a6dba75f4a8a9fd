"""Every wrong word on the command line is answered with one sentence that helps."""

from __future__ import annotations

import json
from typing import Literal

import chz
import pytest

from tinsmith.cli.config import flat, keys, parse, parse_into, reproducing_command, split
from tinsmith.cli.config_help import GROUPS, grouped, help_text
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
        ("env.dataset=arithmetc", "(got 'arithmetc')"),
        (
            "loss_fn=ppoo",
            "loss_fn must be one of importance_sampling, ppo, cispo (got 'ppoo'). Did you mean ppo?",
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
        ("wandb.enabled=yes", "wandb.enabled must be true or false (got 'yes')."),
        ("model_name=", "model_name must not be empty."),
        (
            "batch_size",
            "settings are written key=value (got 'batch_size'). Did you mean batch_size=...?",
        ),
        ("=3", "settings are written key=value"),
        ("--=3", "settings are written key=value"),
        ("--", "settings are written key=value"),
        ("--batch-size", "--batch-size must be followed by its value, as in batch_size=... ."),
        ("--batchsize", "there is no setting 'batchsize'. Did you mean batch_size?"),
        ("batch-siz=3", "there is no setting 'batch_siz'. Did you mean batch_size?"),
        ("dry_run", "settings are written key=value (got 'dry_run'). Did you mean dry_run=...?"),
        ("rollout.max_tokens=many", "rollout.max_tokens must be a whole number or None"),
        ("rollout.seconds=0", "rollout.seconds must be a finite number above 0, or None"),
        ("optim.schedule=cosin", "Did you mean cosine?"),
        ("minitb.task_id=hello-world", "tasks in a terminal are not here yet"),
        ("minitb.dataset_path=~/papers", "there is no setting 'minitb.dataset_path':"),
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
    assert (config.batch_size, config.group_size, flat(config)["env.dataset"]) == (
        100,
        4,
        "arithmetic",
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--batch_size=3"],
        ["batch_size=3"],
        ["--batch-size=3"],
        ["batch-size=3"],
        ["--batch_size", "3"],
        ["--batch-size", "3"],
    ],
)
def test_hyphens_and_flags_are_forgiven(words):
    config = parse(["seed=1", *words, "num_batches=2"])
    assert (config.seed, config.batch_size, config.num_batches) == (1, 3, 2)


def test_a_flag_takes_the_word_after_it_unless_that_is_a_flag():
    assert split(["--optim.lr", "-1", "--log-path", "a=b"]) == {"optim.lr": "-1", "log_path": "a=b"}
    with pytest.raises(ConfigError, match=r"--optim\.lr must be followed by its value"):
        split(["--optim.lr", "--seed", "3"])


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--dry-run"], True),
        (["--dry-run", "seed=3"], True),
        (["--dry-run", "--seed", "3"], True),
        (["--dry-run", "false"], False),
        (["dry_run=1"], True),
        (["dry_run=0"], False),
        (["dry-run=True"], True),
    ],
)
def test_a_bare_flag_is_true(words, meant):
    assert parse(words).dry_run is meant


def test_keys_of_the_environment_may_go_without_their_prefix():
    config = parse(["max_tokens=5", "--dataset", "arithmetic", "seed=7"])
    assert config.env.max_tokens == 5
    assert (config.seed, flat(config)["env.seed"]) == (7, 0), "a key of the run itself comes first"
    assert split(["max-tokens=5"]) == {"env.max_tokens": "5"}


def test_the_kinds_of_values():
    config = parse(
        ["wandb.tags=a, b,,c", "clip_high=1.5", "loss_fn=ppo", "rollout.max_tokens=None", "rollout.seconds=2"]
    )  # fmt: skip
    assert config.wandb.tags == ("a", "b", "c")
    assert config.clip_high == 1.5
    assert config.clip_low is None
    assert config.rollout.max_tokens is None
    assert config.rollout.seconds == 2.0
    assert parse(["wandb.tags="]).wandb.tags == ()


def test_the_resolved_settings_survive_json():
    values = flat(parse(["wandb.tags=a,b", "log_path=x"]))
    assert json.loads(json.dumps(values)) == values
    assert values["env"] == "MathConfig"


@chz.chz
class Inner:
    size: int = chz.field(default=1, doc="how big")


@chz.chz
class Other:
    """A configuration of another command: no environment, one key without a default."""

    data: str = chz.field(doc="where the conversations are")
    kind: Literal["a", "b"] = chz.field(default="a", doc="which")
    weights: tuple[float, ...] = chz.field(default=(), doc="numbers")
    inner: Inner = chz.field(default_factory=lambda: Inner(size=9), doc="inside")


def test_any_configuration_can_be_parsed():
    config = parse_into(Other, ["--data", "x.jsonl", "weights=1,2.5", "inner.size=4"], "sft")
    assert (config.data, config.weights, config.inner.size) == ("x.jsonl", (1.0, 2.5), 4)
    assert flat(config) == {"data": "x.jsonl", "kind": "a", "weights": [1.0, 2.5], "inner.size": 4}
    assert flat(parse_into(Other, ["data=x"], "sft"))["inner.size"] == 9
    with pytest.raises(ConfigError) as caught:
        parse_into(Other, ["kind=b"], "sft")
    assert str(caught.value) == (
        "data=... must be given: where the conversations are. `tinsmith sft --help` lists every key."
    )
    with pytest.raises(ConfigError, match="`tinsmith sft --help` lists every key"):
        parse_into(Other, ["data=x", "zzz=3"], "sft")
    with pytest.raises(ConfigError, match="there is no setting 'max_tokens'"):
        parse_into(Other, ["data=x", "max_tokens=3"], "sft")
    assert "inner.size=9" in help_text(target=Other, head="tinsmith sft")
    assert "data=..." in help_text(target=Other, head="tinsmith sft")


COMMANDS = [
    "batch_size=100 group_size=4 optim.lr=1e-4 env=MathConfig env.dataset=arithmetic env.max_tokens=5 "
    "wandb.entity=team wandb.project=tinker wandb.run_name=debug",
    "--model-name model --batch-size 3 max_tokens=7 log_path=here wandb.tags=a,b --tensorboard",
    "model_name=~/model seed=3 rollout.seconds=None",
    "env.dataset=data.jsonl question=problem answer=solution",
    "--dataset ./data.jsonl",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_stored_command_gives_the_same_settings_from_anywhere(command, tmp_path, monkeypatch):
    for place in ("first", "second"):
        (tmp_path / place / "model").mkdir(parents=True)
        (tmp_path / place / "data.jsonl").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "first"))
    monkeypatch.chdir(tmp_path / "first")
    words = command.split()
    config = parse(words)
    before, again = flat(config), reproducing_command(config, words)
    monkeypatch.setenv("HOME", str(tmp_path / "second"))
    monkeypatch.chdir(tmp_path / "second")
    assert again[:2] == ["tinsmith", "train"]
    assert flat(parse(again[2:])) == before | {"log_path": None}
    assert not any("log_path" in word for word in again)


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


def test_help_names_every_key_with_its_meaning(capsys):
    text = help_text(["--help", "env=MathConfig"])
    assert [heading for heading in GROUPS if f"\n\n{heading}" not in text] == []
    assert "environment (MathConfig)" in text
    unplaced = set(grouped([key.name for key in keys()])["what to train"])
    assert unplaced == set(GROUPS["what to train"]), "a new key belongs into one of the groups"
    for key in keys():
        assert f"{key.name}=" in text
        assert key.doc, key.name
    assert main(["train", "--help"]) == 0
    assert "env.max_tokens=" in capsys.readouterr().out
    assert main(["train", "--help", "env=Mathconfig"]) == 2
    assert "Did you mean MathConfig?" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [40, 72, 200])
def test_help_fits_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = help_text().splitlines()
    assert max(len(line) for line in lines if line.startswith("   ")) <= max(columns, 75)


def test_help_is_quick_to_import():
    import subprocess
    import sys

    heavy = ["torch", "tinker", "datasets", "sympy", "numpy", "transformers", "rich"]
    code = (
        f"import sys, tinsmith.cli.config_help; print([m for m in {heavy!r} if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
