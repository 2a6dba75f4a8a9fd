"""Run names: readable, repeatable from a seed, never taken twice."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tinsmith.errors import StorageError
from tinsmith.runs import naming


class Stuck(random.Random):
    """A generator that always draws the first word."""

    def choice(self, seq):  # type: ignore[override]
        return seq[0]


def test_names_are_two_words_and_follow_the_seed(tmp_path: Path) -> None:
    first = naming.claim_directory(random.Random(7), tmp_path / "a")
    again = naming.claim_directory(random.Random(7), tmp_path / "b")
    assert first.is_dir()
    assert first.name == again.name
    assert re.fullmatch(r"[a-z]+-[a-z]+", first.name)


def test_no_name_is_given_twice(tmp_path: Path) -> None:
    names = {naming.claim_directory(random.Random(7), tmp_path).name for _ in range(60)}
    assert len(names) == 60


def test_names_are_numbered_when_the_plain_ones_run_out(tmp_path: Path) -> None:
    names = [naming.claim_directory(Stuck(), tmp_path).name for _ in range(3)]
    assert names[1:] == [f"{names[0]}-2", f"{names[0]}-3"]


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="TINSMITH_HOME"):
        naming.claim_directory(random.Random(7), tmp_path / "file" / "runs")
