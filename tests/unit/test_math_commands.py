"""The table of math commands is complete: every dataset has its files, and every command can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import math_commands
from scripts.math_commands import COMMANDS, ROWS, reduced
from tinsmith.cli.config import parse
from tinsmith.envs.datasets.table import SOURCES
from tinsmith.envs.math import MathConfig
from tinsmith.settings import EMBEDDED_MODEL


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    math_commands.write_datasets(home / "datasets")
    math_commands.write_files(home)
    return home


@pytest.fixture
def home(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINSMITH_HOME", str(files))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return files


def test_every_named_dataset_has_files_and_a_command() -> None:
    assert ROWS.keys() == SOURCES.keys()
    for name in (*SOURCES, "arithmetic"):
        assert any(f"env.dataset={name}" in command.split() for _, command in COMMANDS), name


@pytest.mark.parametrize("name", ROWS)
def test_the_files_have_the_columns_of_their_dataset(home: Path, name: str) -> None:
    env = MathConfig(dataset=name)
    train, held_out = env.rows("train"), env.rows("eval")
    assert len(train) >= 300
    assert len(held_out) >= 10
    for row in (*train, *held_out):
        a, b = row.question.removeprefix("What is ").removesuffix("?").split(" + ")
        assert row.answer == str(int(a) + int(b))
    assert not {row.question for row in train} & {row.question for row in held_out}


def test_math500_leaves_its_problems_to_itself(home: Path) -> None:
    train = {row.question for row in MathConfig(dataset="hendrycks").rows("train")}
    assert not train & {row.question for row in MathConfig(dataset="math500").rows("train")}


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_can_be_read_and_is_small(home: Path, name: str, command: str) -> None:
    words = reduced(command, EMBEDDED_MODEL, home / "run", home, "http://127.0.0.1:1")
    config = parse(words)
    assert config.model_name == EMBEDDED_MODEL
    assert config.env.max_tokens <= 8
    assert config.num_batches * config.batch_size * config.group_size <= 5000
    assert config.wandb.mode == "offline" or not config.wandb.enabled
