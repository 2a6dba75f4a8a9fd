"""`tinsmith runs`: the table, one run, stopping, JSON, and names that do not exist."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.unit.cli import synthetic
from tinsmith.cli.main import main
from tinsmith.records.run import RunStatus
from tinsmith.runs import process


def said(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    assert main(["runs", *argv]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_no_runs_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys) == "There are no runs yet. `tinsmith train` starts one.\n"
    assert json.loads(said(capsys, "--json")) == []
    assert "`tinsmith train` starts one" in said(capsys, "show", "x", code=1)


def test_the_table_has_the_newest_first_and_the_truth(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic.finished(home / "runs" / "calm-anvil")
    synthetic.running(home / "runs" / "bold-file", created_at=synthetic.START + 50)
    synthetic.running(
        home / "runs" / "tidy-tin",
        created_at=synthetic.START + 9,
        pid=2**22 + 1,
        pid_started_at=1.0,
    )
    (home / "runs" / "not-a-run").mkdir()
    lines = said(capsys).splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["bold-file", "running", "2/4"],
        ["tidy-tin", "lost", "2/4"],
        ["calm-anvil", "finished", "4/4"],
    ]
    assert "0.20 → 0.80  0.18 → 0.97" in lines[3]
    assert [line.split()[0] for line in said(capsys, "--limit", "1").splitlines()[1:]] == [
        "bold-file"
    ]
    found = json.loads(said(capsys, "--json"))
    assert [run["status"] for run in found] == ["running", "lost", "finished"]
    assert found[2]["directory"] == str(home / "runs" / "calm-anvil")


def test_show_says_what_it_reached_and_explains_every_metric(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic.finished(home / "runs" / "calm-anvil")
    shown = said(capsys, "show", "calm-anvil")
    for words in (
        "status   finished at step 4/4",
        "reward 0.18 → 0.97 in 4 steps",
        "changed  env.dataset=arithmetic  group_size=4",
        "weights  tinker://m/sampler_weights/2",
        "Share of rollouts that ran into the token limit.",
    ):
        assert words in shown
    assert "resume" not in shown
    fields = json.loads(said(capsys, "show", "calm-anvil", "--json"))
    assert [line["step"] for line in fields["metrics"]] == [0, 1, 2, 3, 4]
    assert fields["checkpoints"][0]["state_path"] == "tinker://m/weights/2"


def test_a_run_is_found_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.finished(tmp_path / "elsewhere")
    assert "status   finished" in said(capsys, "show", str(tmp_path / "elsewhere"))


def test_an_unknown_name_lists_the_nearest(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.finished(home / "runs" / "calm-anvil")
    for command in ("show", "watch", "stop"):
        assert said(capsys, command, "clam-anvil", code=1) == (
            "tinsmith: there is no run 'clam-anvil'. Did you mean calm-anvil?\n"
        )


@pytest.mark.parametrize(
    "argv", [("shwo", "x"), ("show",), ("--limit", "0"), ("stop", "x", "--now")]
)
def test_a_wrong_option_is_one_sentence(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    error = said(capsys, *argv, code=2)
    assert error.startswith("tinsmith: ")
    assert "tinsmith runs --help" in error
    assert "Traceback" not in error


def test_help_exists_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "show" in said(capsys, "--help")
    assert "NAME" in said(capsys, "stop", "--help")


def test_stop_saves_and_stops_a_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = home / "runs" / "calm-anvil"
    directory.mkdir(parents=True)
    script, root = Path(__file__).with_name("pretend_trainer.py"), Path(__file__).parents[3]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    argv = [sys.executable, "-c", code, str(script), str(directory), "waits"]
    pid = process.spawn(argv, directory=root, log=directory / "out.log")
    started = process.started_at(pid) or 0.0
    while not (directory / "metrics.jsonl").exists():
        assert process.is_alive(pid, started), (directory / "out.log").read_text()
    shown = said(capsys, "stop", "calm-anvil")
    assert "calm-anvil is stopped at step" in shown
    assert f"log_path={directory}" in shown
    assert not process.is_alive(pid, started)
    assert "it is stopped" in said(capsys, "stop", "calm-anvil", code=1)


def test_a_run_that_will_not_stop_is_ended_and_says_so(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = home / "runs" / "calm-anvil"
    directory.mkdir(parents=True)
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    pid = process.spawn([sys.executable, "-c", deaf], directory=home, log=directory / "out.log")
    started = process.started_at(pid)
    while "up" not in (directory / "out.log").read_text():
        assert process.is_alive(pid, started or 0.0)
    synthetic.running(directory, pid=pid, pid_started_at=started)
    run = json.loads(said(capsys, "stop", "calm-anvil", "--grace-seconds", "0.1", "--json"))
    assert run["status"] == RunStatus.STOPPED
    assert "had not stopped" in run["message"]
    assert not process.is_alive(pid, started or 0.0)


def test_show_names_the_best_checkpoint(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = synthetic.running(home / "runs" / "calm-anvil", steps=3)
    writer.checkpoint(3, "tinker://m/weights/3", "tinker://m/sampler_weights/3", {}, score=0.9)
    writer.checkpoint(4, "tinker://m/weights/4", "tinker://m/sampler_weights/4", {}, score=0.5)
    shown = said(capsys, "show", "calm-anvil")
    assert "weights  tinker://m/sampler_weights/4" in shown
    assert "best     tinker://m/sampler_weights/3 (0.9 held out at step 3)" in shown


def test_runs_of_both_kinds_are_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.finished(home / "runs" / "calm-anvil")
    writer = synthetic.running(home / "runs" / "warm-start", steps=0)
    writer.start_at(None)
    writer.metrics(0, {"eval/nll": 2.5})
    writer.metrics(1, {"nll": 2.0, "eval/nll": 1.5})
    rows = said(capsys).splitlines()
    assert any("nll 2.00" in row and "nll 2.50 → 1.50" in row for row in rows)
    assert any("0.20 → 0.80" in row and "0.18 → 0.97" in row for row in rows)
