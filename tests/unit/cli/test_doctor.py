"""`tinsmith doctor`: sentences that are true, and what to type where something lacks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tinsmith.cli import doctor
from tinsmith.cli.doctor import Level
from tinsmith.cli.main import main


def test_every_missing_thing_ends_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret-key")
    code = main(["doctor"])
    shown = capsys.readouterr().out
    assert "tml-secret-key" not in shown
    assert "TINKER_API_KEY is set" in shown
    for line in shown.splitlines():
        if line.startswith("✗"):
            assert " Type: " in line
    assert (code == 0) == ("The first command works here." in shown)


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["works"] is (code == 0)
    assert len(answer["findings"]) == len(doctor.CHECKS)


def test_a_missing_torch_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    finding = doctor.torch()
    assert finding.level is Level.MISSING
    assert finding.fix == 'pip install "tinsmith[local]"'


def test_a_damaged_embedded_model_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tinsmith"
    tiny = package / "tiny"
    tiny.mkdir(parents=True)
    monkeypatch.setattr("tinsmith.__file__", str(package / "__init__.py"))
    assert doctor.embedded_model().level is Level.MISSING
    (tiny / "config.json").write_text('{"model_type": "qwen3"}')
    (tiny / "tokenizer.json").write_text("{}")
    (tiny / "model.safetensors").write_bytes(b"\xff" * 100)
    assert doctor.embedded_model().level is Level.MISSING
    header = b'{"w": {}}'
    (tiny / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert doctor.embedded_model().level is Level.OK


def test_a_home_that_is_a_file_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "file" / "deeper"):
        monkeypatch.setenv("TINSMITH_HOME", str(home))
        finding = doctor.home()
        assert finding.level is Level.MISSING
        assert "TINSMITH_HOME" in finding.fix


def test_looking_changes_nothing(home: Path) -> None:
    assert doctor.home().level is Level.OK
    assert doctor.local_service().level is Level.NOTE
    assert not home.exists()


def test_an_unknown_option_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--fix"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
