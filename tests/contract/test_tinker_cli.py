"""The `tinker` command line that comes with the SDK, as people type it, against the service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import tinker
import torch
import transformers

from tests.contract.conftest import BackendFactory, Running
from tests.contract.data import TOKENS, datum
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL, LOCAL_API_KEY

Command = Callable[..., str]


@pytest.fixture(scope="module")
def backend_factory() -> BackendFactory:
    return lambda: TorchBackend(device="cpu", dtype="float32", threads=1)


@pytest.fixture(scope="module")
def trainer(client: tinker.ServiceClient) -> tinker.TrainingClient:
    trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=8, seed=1)
    for _ in range(3):
        trainer.forward_backward([datum()], "cross_entropy")
        trainer.optim_step(tinker.AdamParams(learning_rate=0.02)).result()
    return trainer


@pytest.fixture(scope="module")
def path(trainer: tinker.TrainingClient) -> str:
    return trainer.save_state("final").result().path


@pytest.fixture
def command(server: Running, path: str, tmp_path: Path) -> Command:
    """Runs `tinker ...` in an empty directory and gives what it printed."""

    def run(*arguments: str, fails: bool = False) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "COLUMNS": "200",
            "TINKER_BASE_URL": server.url,
            "TINKER_API_KEY": LOCAL_API_KEY,
            "TINKER_TELEMETRY": "0",
        }
        done = subprocess.run(
            [sys.executable, "-m", "tinker.cli", *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return run


def test_runs(command: Command, trainer: tinker.TrainingClient, path: str) -> None:
    runs = json.loads(command("--format", "json", "run", "list"))["runs"]
    assert trainer.model_id in [run["training_run_id"] for run in runs]
    shown = command("run", "info", trainer.model_id)
    for expected in (trainer.model_id, EMBEDDED_MODEL, "Rank 8", path):
        assert expected in shown


def test_checkpoints(command: Command, trainer: tinker.TrainingClient, path: str) -> None:
    shown = command("checkpoint", "list", "--run-id", trainer.model_id)
    assert path in shown
    listed = json.loads(command("--format", "json", "checkpoint", "list"))["checkpoints"]
    assert path in [one["tinker_path"] for one in listed]
    info = json.loads(command("--format", "json", "checkpoint", "info", path))
    assert (info["checkpoint_type"], info["lora_rank"], info["public"]) == ("training", 8, False)


def test_publish_ttl_and_delete(
    command: Command, server: Running, trainer: tinker.TrainingClient
) -> None:
    path = trainer.save_weights_for_sampler("mine").result().path
    store = server.service.store

    def stored():
        row = store.checkpoint(path)
        assert row is not None
        return row

    command("checkpoint", "publish", path)
    assert stored().public
    command("checkpoint", "unpublish", path)
    assert not stored().public
    command("checkpoint", "set-ttl", path, "--ttl", "7200")
    expires = stored().expires_at
    assert expires is not None
    assert 7000 < expires - stored().created_at < 7400
    command("checkpoint", "set-ttl", path, "--remove")
    assert stored().expires_at is None
    assert "Deleted 1 checkpoint(s)" in command("checkpoint", "delete", path, "--yes")
    assert store.checkpoint(path) is None


def test_download(
    command: Command, server: Running, trainer: tinker.TrainingClient, path: str, tmp_path: Path
) -> None:
    """A training checkpoint, which the command line loads and exports through a session of its own."""
    command("checkpoint", "download", path)
    directory = tmp_path / path.removeprefix("tinker://").replace("/", "_")
    assert {file.name for file in directory.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    kinds = {row.kind for row in server.service.store.checkpoints()}
    assert "external_weights" not in kinds  # the temporary export is gone again
    base = transformers.AutoModelForCausalLM.from_pretrained(
        server.backend.describe(EMBEDDED_MODEL).directory, dtype=torch.float32
    )
    model, tokens = peft.PeftModel.from_pretrained(base, directory), torch.tensor(TOKENS)
    with torch.no_grad():
        scores = model(tokens[None, :-1]).logits[0].log_softmax(-1)
    out = trainer.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    found = scores[range(len(TOKENS) - 1), tokens[1:]]
    torch.testing.assert_close(found, torch.tensor(out.data), atol=1e-4, rtol=0)


def test_trace_and_status(command: Command, trainer: tinker.TrainingClient, tmp_path: Path) -> None:
    session = trainer.model_id.partition(":")[0]
    command("session", "export-trace", session)
    events = json.loads((tmp_path / f"{session}.pftrace").read_bytes())["traceEvents"]
    assert "optim_step" in {event["name"] for event in events}
    assert "Tinker accessible: yes" in command("auth", "status")


def test_what_is_not_there(command: Command) -> None:
    said = command("run", "info", "nobody:train:0", fails=True)
    assert "there is no training run nobody:train:0" in said
