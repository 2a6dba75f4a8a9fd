"""Datasets through the real `datasets` package: directories in the hub's layout, caches, no network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tinsmith.envs import MathConfig
from tinsmith.errors import ConfigError

datasets = pytest.importorskip("datasets", reason="needs the extra tinsmith[math]")

CARD = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: other
  data_files:
  - split: train
    path: other/train-*
---
"""
LOADS = """
import sys, json
from tinsmith.envs import MathConfig
from tinsmith.errors import TinsmithError
try:
    config = MathConfig(**json.loads(sys.argv[1]))
    print(json.dumps([[row.question for row in config.rows(s)] for s in ("train", "eval")]))
except TinsmithError as error:
    print(error)
"""


def questions(first: int, last: int) -> list[dict]:
    return [{"question": f"q{i}", "answer": f"#### {i}", "more": [i]} for i in range(first, last)]


def parquet(path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(rows).to_parquet(str(path))


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """A directory as a dataset's repository on the hub is."""
    folder = tmp_path_factory.mktemp("layout")
    parquet(folder / "main/train-00000-of-00001.parquet", questions(0, 20))
    parquet(folder / "main/test-00000-of-00001.parquet", questions(18, 25))
    parquet(folder / "other/train-00000-of-00001.parquet", questions(50, 60))
    (folder / "README.md").write_text(CARD)
    return folder


@pytest.fixture
def elsewhere(tmp_path):
    """Loads in a process with its own home and caches, where the hub is out of reach."""

    def load(settings: dict, before: str = "", **environment: str) -> str:
        home = {"TINSMITH_HOME": str(tmp_path / "home"), "HF_HOME": str(tmp_path / "hf")}
        done = subprocess.run(
            [sys.executable, "-c", before + LOADS, json.dumps(settings)],
            capture_output=True,
            text=True,
            env=os.environ | home | environment,
        )
        assert done.returncode == 0, done.stderr
        assert "Retrying" not in done.stderr  # which would take minutes
        return done.stdout

    return load


def test_a_directory_in_the_hubs_layout(layout, tmp_path, monkeypatch, capsys):
    copy = tmp_path / "repo"
    shutil.copytree(layout, copy)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    config = MathConfig(dataset=str(copy), subset="other", answer="answer")
    assert len(config.rows("train")) + len(config.rows("eval")) == 10
    (copy / "main").rename(copy / "data")
    (copy / "README.md").write_text(CARD.replace("main/", "data/"))
    config = MathConfig(dataset=str(copy), subset="main")
    assert [row.question for row in config.rows("eval")] == [f"q{i}" for i in range(18, 25)]
    assert [row.answer for row in config.rows("train")] == [str(i) for i in range(18)]
    assert "reading 20 rows" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"does not have env\.subset=none"):
        MathConfig(dataset=str(copy), subset="none").rows("train")


def test_a_directory_of_save_to_disk(tmp_path):
    data = datasets.Dataset.from_list(questions(0, 9))
    data.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": data, "test": data.select(range(2))}).save_to_disk(
        str(tmp_path / "two")
    )
    one, two = (MathConfig(dataset=str(tmp_path / name)) for name in ("one", "two"))
    assert len(one.rows("train")) + len(one.rows("eval")) == 9
    assert (len(two.rows("train")), len(two.rows("eval"))) == (7, 2)


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        ({"dataset": "gsm8k"}, ("gsm8k/train.jsonl", "gsm8k/test.jsonl", "question and answer")),
        ({"dataset": "owner/name"}, ("owner/name/train.jsonl", "question and answer")),
    ],
)
def test_without_the_hub_a_sentence_says_at_once_which_file_to_put_where(
    elsewhere, settings, files
):
    said = elsewhere(settings, HF_HUB_OFFLINE="1")
    assert "is not on this machine" in said
    assert "HF_HUB_OFFLINE is set" in said
    assert all(file in said for file in files)


def test_a_hub_that_does_not_answer_is_not_asked_again_and_again(elsewhere):
    # Port 9 of this machine: a connection is refused at once, as without a network.
    said = elsewhere(
        {"dataset": "hendrycks"}, HF_ENDPOINT="http://127.0.0.1:9", http_proxy="", HTTP_PROXY=""
    )
    assert "the hub does not answer" in said
    assert "hendrycks/train.jsonl" in said
    assert "problem and solution" in said


def test_the_hubs_files_on_this_machine_are_used(elsewhere, layout, tmp_path):
    repository = tmp_path / "hf/hub/datasets--openai--gsm8k"
    shutil.copytree(layout, repository / "snapshots/abc")
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("abc")
    train, held_out = json.loads(elsewhere({"dataset": "gsm8k"}, HF_HUB_OFFLINE="1"))
    assert (len(train), len(held_out)) == (18, 7)


def test_the_packages_cache_on_this_machine_is_used(elsewhere, layout, tmp_path):
    cache = tmp_path / "hf/datasets"
    files = {s: str(layout / f"main/{s}-00000-of-00001.parquet") for s in ("train", "test")}
    datasets.load_dataset("parquet", "main", data_files=files, cache_dir=str(cache))
    (made,) = cache.glob("parquet/*/0.0.0/*/")
    kept = cache / "openai___gsm8k/main/0.0.0/0123"
    shutil.copytree(made, kept)
    for file in kept.glob("parquet-*"):
        file.rename(kept / file.name.replace("parquet-", "gsm8k-"))
    train, held_out = json.loads(elsewhere({"dataset": "gsm8k"}, HF_HUB_OFFLINE="1"))
    assert (len(train), len(held_out)) == (18, 7)


def test_a_missing_package_is_a_sentence_and_lines_need_none(elsewhere, layout, tmp_path):
    without = "import sys; sys.modules['datasets'] = None; sys.modules['pyarrow'] = None\n"
    said = elsewhere({"dataset": "gsm8k"}, before=without)
    assert 'pip install "tinsmith[math]"' in said
    assert "gsm8k/train.jsonl" in said
    file = str(layout / "main/train-00000-of-00001.parquet")
    said = elsewhere({"dataset": file}, before=without)
    assert 'needs pyarrow: pip install "tinsmith[math]"' in said
    said = elsewhere({"dataset": str(layout)}, before=without)
    assert "cannot be read: the datasets package is missing" in said
    (tmp_path / "lines.jsonl").write_text('{"question": "q", "answer": "1"}\n')
    said = elsewhere({"dataset": str(tmp_path / "lines.jsonl"), "held_out": 0}, before=without)
    assert json.loads(said) == [["q"], []]
