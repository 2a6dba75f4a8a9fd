"""The `tinsmith` command itself: help, unknown commands, errors as sentences, cheap imports."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

import tinsmith
from tinsmith.cli import main as cli
from tinsmith.errors import RunError

HEAVY = ("torch", "transformers", "tinker", "numpy", "pydantic", "fastapi", "chz", "rich", "click")


def fake_command(monkeypatch: pytest.MonkeyPatch, run: object) -> None:
    module = types.ModuleType("tinsmith.cli.doctor")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tinsmith.cli.doctor", module)


def test_help_names_every_command_and_the_first_one_to_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([]) == 0
    bare = capsys.readouterr().out
    assert cli.main(["--help"]) == 0
    assert capsys.readouterr().out == bare
    for command, what in cli.COMMANDS.items():
        assert command in bare
        assert what in bare
    assert "tinsmith train env=MathConfig env.dataset=arithmetic" in bare


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tinsmith {tinsmith.__version__}\n"


def test_an_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian", "x=1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "'trian'" in captured.err
    assert "Did you mean `tinsmith train`?" in captured.err


def test_an_error_is_one_sentence_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(argv: list[str]) -> int:
        raise RunError(f"cannot do {argv}")

    fake_command(monkeypatch, run)
    assert cli.main(["doctor", "a", "b"]) == RunError.exit_code == 1
    assert capsys.readouterr().err == "tinsmith: cannot do ['a', 'b']\n"


def test_ctrl_c_and_plain_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, lambda argv: None)
    assert cli.main(["doctor"]) == 0
    fake_command(monkeypatch, lambda argv: 7)
    assert cli.main(["doctor"]) == 7

    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    fake_command(monkeypatch, interrupted)
    assert cli.main(["doctor"]) == 130


def test_a_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.delitem(sys.modules, "tinsmith.cli.runs", raising=False)
    for name in [name for name in sys.modules if name.startswith("tinsmith.runs")]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(["runs"]) == 2
    error = capsys.readouterr().err
    assert "psutil" in error
    assert "pip install" in error


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m tinsmith --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_help_imports_little_and_fast() -> None:
    """The budget is 0.3 s; the best of three keeps a busy machine from deciding."""
    totals: list[float] = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "tinsmith", "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        rows = [
            line.split("|") for line in done.stderr.splitlines() if line.startswith("import time:")
        ]
        rows = [row for row in rows if row[0].split(":")[1].strip().isdigit()]
        modules = {row[2].strip().split(".")[0] for row in rows}
        assert not modules & set(HEAVY)
        totals.append(sum(int(row[0].split(":")[1]) for row in rows) / 1e6)
    print(f"imports of `tinsmith --help`: {min(totals):.3f} s")
    assert min(totals) < 0.3
