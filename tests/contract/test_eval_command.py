"""`tinsmith eval` and `tinsmith chat` as people type them, against a real service with the embedded model."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import BackendFactory, Running
from tests.unit.rl.endpoint_server import KEY, Asked, endpoint_server, said
from tinsmith.cli.main import main
from tinsmith.records.evaluation import read_evaluations
from tinsmith.records.files import whole_lines
from tinsmith.records.rollout import RolloutRecord
from tinsmith.records.run import RunInfo, RunStatus, write_run
from tinsmith.records.writer import RunWriter
from tinsmith.rl.endpoint_http import TRIES
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

SMALL = ["eval_size=6", "env.max_tokens=6"]


@pytest.fixture(scope="module")
def backend_factory() -> BackendFactory:
    return lambda: TorchBackend(device="cpu", dtype="float32", threads=1)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path / "home"))
    for name in ("TINSMITH_RUNS", "OPENAI_API_KEY", "TINKER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture(scope="module")
def saved(client: Any) -> list[str]:
    """The paths of two checkpoints."""
    trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=8, seed=1)
    return [trainer.save_weights_for_sampler(f"{n:06d}").result().path for n in (2, 4)]


@pytest.fixture
def anvil(server: Running, saved: list[str], home: Path) -> Path:
    """A finished run with two checkpoints, of which the first did better."""
    directory = home / "runs" / "anvil"
    words = [f"base_url={server.url}", "batch_size=8", "env.max_tokens=6", "eval_size=5", "seed=3"]
    config = {"model_name": EMBEDDED_MODEL, "base_url": server.url, "temperature": 1.0}
    command = ["tinsmith", "train", *words]
    info = RunInfo("anvil", "anvil", RunStatus.FINISHED, command, config, words)
    writer = RunWriter(directory, info)
    for step, path, score in zip((2, 4), saved, (0.9, 0.4), strict=True):
        writer.checkpoint(step, path, path, {}, score=score)
    writer.finish(RunStatus.FINISHED)
    return directory


def records(directory: Path) -> list[RolloutRecord]:
    return [RolloutRecord.from_json(line) for line in whole_lines(directory / "rollouts.jsonl")]


# ── what can be evaluated ──


def test_a_base_model(server, home, capsys):
    words = [f"base_url={server.url}", *SMALL, "eval_samples=3", "show=1"]
    assert main(["eval", EMBEDDED_MODEL, *words]) == 0
    out, err = capsys.readouterr()
    assert f"{EMBEDDED_MODEL} · arithmetic · 6 held-out problems, 3 rollouts each" in out
    for label in ("reward ", "pass@1 ", "pass@3 ", "failed   0 of 18", "right ", "files "):
        assert label in out
    assert "0/18 rollouts" in err
    assert "18/18 rollouts" in err
    (folder,) = (home / "runs").glob("*/evals/001")
    (result,) = read_evaluations(folder.parent.parent)
    assert (result.kind, result.model, result.step) == ("model", EMBEDDED_MODEL, 0)
    assert result.metrics["eval/pass@1_low"] <= result.metrics["eval/pass@1"]
    assert result.config["eval_samples"] == 3
    rollouts = records(folder)
    assert len(rollouts) == 18
    assert {record.split for record in rollouts} == {"eval"}
    said_last = rollouts[0].turns[-1]
    assert len(said_last["tokens"]) == len(said_last["logprobs"])


def test_the_same_words_give_the_same_result(server, tmp_path, capsys):
    words = ["eval", EMBEDDED_MODEL, f"base_url={server.url}", *SMALL, f"log_path={tmp_path / 'x'}"]
    assert main([*words, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["command"][:3] == ["tinsmith", "eval", EMBEDDED_MODEL]
    assert main([*first["command"][1:], f"log_path={tmp_path / 'x'}"]) == 0
    one, two = read_evaluations(tmp_path / "x")
    assert one.metrics == two.metrics
    assert first["directory"] == str(tmp_path / "x" / "evals" / "001")
    texts = [
        [turn["text"] for record in records(tmp_path / "x" / "evals" / n) for turn in record.turns]
        for n in ("001", "002")
    ]
    assert texts[0] == texts[1]


def test_a_run_is_tried_with_its_own_settings_and_keeps_the_result(anvil, saved, capsys):
    assert main(["eval", "anvil"]) == 0
    assert main(["eval", str(anvil), "eval_size=2", "--step", "best"]) == 0
    shown = capsys.readouterr().out
    assert "anvil step 4 · arithmetic · 5 held-out problems" in shown
    assert "anvil step 2 · arithmetic · 2 held-out problems" in shown
    last, best = read_evaluations(anvil)
    assert (last.step, last.model_path) == (4, saved[1])
    assert (best.step, best.model_path) == (2, saved[0])
    assert (last.config["env.max_tokens"], last.config["seed"]) == (6, 3)
    assert {record.policy_version for record in records(anvil / "evals" / "001")} == {4}


def test_saved_weights(server, saved, capsys):
    assert main(["eval", saved[0], f"base_url={server.url}", *SMALL, "temperature=0"]) == 0
    assert saved[0] in capsys.readouterr().out


def test_our_own_service_as_an_openai_endpoint(server, saved, home, capsys):
    """The same problems and the same weights by the other door: the greedy answers are the same."""
    greedy = [*SMALL, "temperature=0", "show=0"]
    assert main(["eval", saved[0], f"base_url={server.url}", *greedy]) == 0
    assert main(["eval", f"{server.url}/v1", f"model={saved[0]}", *greedy]) == 0
    assert f"{saved[0]} at {server.url}/v1" in capsys.readouterr().out
    folders = {folder.parent.parent for folder in (home / "runs").glob("*/evals/001")}
    by_kind = {read_evaluations(d)[0].kind: (read_evaluations(d)[0], d) for d in folders}
    weights, endpoint = by_kind["weights"], by_kind["endpoint"]
    assert weights[0].metrics == endpoint[0].metrics
    replies = [
        [record.turns[-1]["logs"]["reply"] for record in records(d / "evals" / "001")]
        for _, d in (weights, endpoint)
    ]
    assert replies[0] == replies[1]
    turns = [turn for record in records(endpoint[1] / "evals" / "001") for turn in record.turns]
    assert not any("tokens" in turn or "logprobs" in turn for turn in turns)
    assert turns[0]["text"].startswith("What is")


# ── what goes wrong ──


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "there is no run 'nowhere', and no model can have that name"),
        (["eval_size=3"], "what to evaluate comes first"),
        (["tinsmith/tinny"], "Did you mean tinsmith/tiny?"),
        ([EMBEDDED_MODEL, "eval_sizes=3"], "Did you mean eval_size?"),
        ([EMBEDDED_MODEL, "step=2"], "needs a run"),
        ([EMBEDDED_MODEL, "step=last"], "step must be the number of a step, or best"),
        ([EMBEDDED_MODEL, "temperature=-1"], "temperature must be a finite number, at least 0"),
        ([EMBEDDED_MODEL, "eval_size=0"], "eval_size must be at least 1"),
        (["http:///v1", "model=x"], "is no address"),
        (["https://[bad/v1", "model=x"], "is no address"),
        (["http://host:99999/v1", "model=x"], "is no address"),
        (["http://127.0.0.1:1/v1", "model=x"], "nothing answers at http://127.0.0.1:1/v1"),
    ],
)
def test_a_mistake_is_a_sentence(words, sentence, home, capsys):
    assert main(["eval", *words]) in (1, 2)
    assert sentence in capsys.readouterr().err
    assert not (home / "runs").exists()


def test_a_run_without_what_was_asked_for(anvil, tmp_path, home, capsys):
    assert main(["eval", "anvil", "step=3"]) == 2
    assert "anvil has no checkpoint of step 3; it has 2, 4, and best" in capsys.readouterr().err
    write_run(tmp_path / "new", RunInfo("new", "new", RunStatus.STOPPED, [], {}))
    assert main(["chat", str(tmp_path / "new"), "--once", "hi"]) == 1
    assert "has saved no checkpoint yet" in capsys.readouterr().err
    assert main(["eval", "anvli"]) == 1
    assert "Did you mean anvil?" in capsys.readouterr().err


def test_weights_and_models_that_are_not_there_are_the_services_sentences(server, saved, capsys):
    missing = saved[0][:-1] + "9"
    assert main(["eval", missing, f"base_url={server.url}"]) == 2
    assert missing in (err := capsys.readouterr().err)
    assert "Traceback" not in err
    assert main(["eval", f"{server.url}/v1", "model=nobody/nothing", *SMALL]) == 1
    assert "all 6 rollouts failed; 6 of them said" in (err := capsys.readouterr().err)
    assert "has no model 'nobody/nothing'" in err
    assert main(["eval", f"{server.url}/v1", *SMALL]) == 2
    assert f"needs model=NAME; it offers {EMBEDDED_MODEL}" in capsys.readouterr().err


def test_every_rollout_failing_fails_the_command_with_the_reason(server, home, capsys):
    words = [f"base_url={server.url}", "eval_size=2", "env.max_tokens=100000"]
    assert main(["eval", EMBEDDED_MODEL, *words]) == 1
    assert "all 2 rollouts failed" in (err := capsys.readouterr().err)
    assert "more than the context" in err
    assert not list((home / "runs").glob("*/evals/*"))


def test_an_endpoint_that_refuses_the_key(monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with endpoint_server(lambda asked: (401, {"error": {"message": f"bad {KEY}"}})) as (url, _):
        assert main(["eval", url, "model=small", *SMALL]) == 1
    out, err = capsys.readouterr()
    assert "does not let us in with OPENAI_API_KEY (HTTP 401: bad …)" in err
    assert KEY not in out + err


def test_an_endpoint_that_is_busy_now_and_then(monkeypatch, home, capsys):
    """429 and 500 are waited out; a rollout that never gets through is data, not the end."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    tried: dict[str, int] = {}

    def answer(asked: Asked):
        if asked.number < 0:
            return 200, {}
        question = asked.body["messages"][-1]["content"]
        tried[question] = tried.get(question, 0) + 1
        if list(tried).index(question) == 0:  # never
            return 500, {"error": {"message": "on fire"}}
        if tried[question] == 1:
            return 429, {"error": {"message": "wait"}}, {"retry-after": "0"}
        return said("\x1b[31m7", tokens=4)

    monkeypatch.setattr("tinsmith.rl.endpoint_http.FIRST_WAIT", 0.0)
    with endpoint_server(answer) as (url, asked):
        assert main(["eval", url, "model=small", *SMALL, "rollout.retries=0"]) == 0
    out = capsys.readouterr().out
    assert "failed   1 of 6 rollouts" in out
    assert f"HTTP 500 (on fire), also after {TRIES} tries" in out
    assert "tokens   4 a rollout" in out
    assert "\x1b" not in out
    assert len(asked) == TRIES + 2 * 5
    (folder,) = (home / "runs").glob("*/evals/001")
    assert sum(record.error is not None for record in records(folder)) == 1
    assert KEY not in "".join(file.read_text() for file in folder.iterdir())


def test_results_that_cannot_be_written_are_a_sentence(server, tmp_path, capsys):
    (tmp_path / "file").touch()
    words = [f"base_url={server.url}", "eval_size=2", f"log_path={tmp_path / 'file'}"]
    assert main(["eval", EMBEDDED_MODEL, *words]) == 1
    assert "cannot write" in (err := capsys.readouterr().err)
    assert "Traceback" not in err


def test_ctrl_c_leaves_cleanly_and_writes_nothing(home):
    left = threading.Event()

    def answer(asked: Asked):
        if asked.number >= 0:
            left.wait(60)
        return said("late")

    with endpoint_server(answer) as (url, _):
        command = [sys.executable, "-m", "tinsmith", "eval", url, "model=small", *SMALL]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stderr is not None
        assert b"0/6 rollouts" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        left.set()
    assert process.returncode == 130
    assert out == b""
    assert b"Traceback" not in err
    assert not (home / "runs").exists()


# ── chat ──


def test_one_question(anvil, capsys):
    asked = ["--once", "What is 12 + 30?", "--temperature", "0"]
    assert main(["chat", "anvil", *asked]) == 0
    answer = capsys.readouterr().out
    assert answer.strip().isdigit()
    assert main(["chat", str(anvil), "--step", "best", *asked]) == 0
    assert capsys.readouterr().out.strip().isdigit()


def test_a_conversation_through_a_pipe(server, monkeypatch, capsys):
    lines = ["What is 1 + 1?", "", "And 2 + 2?", "/reset", "/what", "What is 3 + 3?"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    assert main(["chat", EMBEDDED_MODEL, "--base-url", server.url, "--seed", "1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert "begins anew" in err
    assert "there is no /what" in err


def test_an_answer_that_cannot_come_does_not_end_the_conversation(server, monkeypatch, capsys):
    long = "What is 1 + 1? " * 1000
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{long}\nWhat is 2 + 2?\n/quit\nnever"))
    assert main(["chat", EMBEDDED_MODEL, "--base-url", server.url]) == 0
    out, err = capsys.readouterr()
    assert "more than the context" in err
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "there is no run 'nowhere'"),
        (["http://127.0.0.1/v1"], "chat talks to models on a Tinker service"),
        ([EMBEDDED_MODEL, "--step", "x"], "step must be the number of a step, or best"),
        ([EMBEDDED_MODEL, "--temperature", "-1"], "--temperature"),
        ([], "Missing argument 'WHAT'"),
    ],
)
def test_a_mistake_in_chat_is_a_sentence(words, sentence, capsys):
    assert main(["chat", *words]) in (1, 2)
    assert sentence in capsys.readouterr().err


def test_at_a_terminal_ctrl_d_leaves(server):
    terminal, other_end = pty.openpty()
    command = ["chat", EMBEDDED_MODEL, "--base-url", server.url, "--temperature", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tinsmith", *command],
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
    )
    os.close(other_end)
    seen = b""
    try:
        while b"you> " not in seen:
            seen += os.read(terminal, 4096)
        os.write(terminal, b"What is 12 + 30?\n")
        while seen.count(b"you> ") < 2:
            seen += os.read(terminal, 4096)
        os.write(terminal, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(terminal)
    assert b"Ctrl-D leaves" in seen
    assert b"Traceback" not in seen
