"""Trains through a service that is killed again and again, and through one that is not; compares.

`python -m tests.chaos.storm --kills 200` is the long one; the tests run a short one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tinker

from tinsmith.settings import EMBEDDED_MODEL, LOCAL_API_KEY

START_SECONDS = 120.0
ANSWERS_A_STEP = 8


class Server:
    """`tinsmith serve` as a process of its own, on one port and directory through all restarts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = directory.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tinsmith", "serve", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--directory", str(self.directory)], stdout=log, stderr=log
            )

    def wait_until_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the service ended by itself: {self.log.read_text()[-2000:]}")
            try:
                urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5).read()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.02)
        raise RuntimeError("the service did not start")

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)


@dataclass
class Seen:
    """Everything a client saw, in order."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    weights: str = ""  # a checksum of the adapter at the end
    answered: int = 0


def _datum(step: int, number: int) -> tinker.Datum:
    source = random.Random(1000 * step + number)
    tokens = [source.randrange(4, 64) for _ in range(source.randrange(6, 24))]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64"),
            "weights": tinker.TensorData(data=[1.0] * (len(tokens) - 1), dtype="float32"),
        },
    )


def train(url: str, steps: int, seen: Seen) -> Seen:
    """Two passes and a step, then samples from a copy of the new weights; each step."""
    client = tinker.ServiceClient(base_url=url, api_key=LOCAL_API_KEY)
    trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=8, seed=3)
    seen.answered += 1
    for step in range(steps):
        passes = [
            trainer.forward_backward(
                [_datum(step, 10 * half + n) for n in range(8)], "cross_entropy"
            )
            for half in range(2)
        ]
        stepped = trainer.optim_step(tinker.AdamParams(learning_rate=0.01, weight_decay=0.01))
        for done in passes:
            seen.losses.append(done.result().metrics["loss:sum"])
            seen.answered += 1
        seen.norms.append((stepped.result().metrics or {})["unclipped_grad_l2:mean"])
        seen.answered += 1
        if step % 7 == 3:
            trainer.save_state(f"{step:06d}").result()
            seen.answered += 1
        sampler = trainer.save_weights_and_get_sampling_client()
        seen.answered += 1
        prompt = tinker.ModelInput.from_ints([5, 6, 7, step + 4])
        params = tinker.SamplingParams(max_tokens=12, seed=step, temperature=1.0)
        samples = [sampler.sample(prompt, 1, params) for _ in range(4)]
        for sample in samples:
            sequence = sample.result().sequences[0]
            seen.tokens.append(list(sequence.tokens))
            seen.logprobs.append([float(x) for x in sequence.logprobs or []])
            seen.answered += 1
    path = trainer.save_state("end").result().path
    seen.weights = path
    client.close("success")  # not waited for: everything was seen
    return seen


def _checksum(directory: Path, path: str) -> str:
    """Of a saved checkpoint's weights and optimizer state."""
    model, kind, name = path.removeprefix("tinker://").split("/")
    files = sorted((directory / "checkpoints" / model / kind / name).glob("*.safetensors"))
    return " ".join(hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files)


def calm(directory: Path, steps: int) -> Seen:
    server = Server(directory)
    server.start()
    try:
        server.wait_until_ready()
        seen = train(server.url, steps, Seen())
    finally:
        server.stop()
    seen.weights = _checksum(directory, seen.weights)
    return seen


def storm(directory: Path, steps: int, kills: int, seed: int, report: Any = None) -> Seen:
    """As `calm`, but the service is killed `kills` times, each time after some more answers came."""
    server, source, seen = Server(directory), random.Random(seed), Seen()
    server.start()
    server.wait_until_ready()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            train(server.url, steps, seen)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failure.append(error)

    client = threading.Thread(target=run, daemon=True)
    client.start()
    try:
        moments = sorted(source.sample(range(1, ANSWERS_A_STEP * steps - 1), kills))
        for number, due in enumerate(moments):
            while client.is_alive() and seen.answered < due:
                time.sleep(0.001)
            time.sleep(source.random() * 0.02)  # anywhere between this answer and the next
            if failure:
                raise failure[0]
            server.kill()
            if report:
                report(number + 1, seen.answered)
            server.start()
            if source.random() < 0.2:  # also while it is coming back
                time.sleep(source.random() * 3)
                server.kill()
                server.start()
        server.wait_until_ready()
        client.join(150)
        if failure:
            raise failure[0]
        assert not client.is_alive(), "the client is stuck"
    finally:
        server.stop()
    seen.weights = _checksum(directory, seen.weights)
    return seen


def differences(one: Seen, other: Seen) -> list[str]:
    """What a client of the one saw that a client of the other did not."""
    found: list[str] = []
    for name in ("losses", "norms", "tokens", "logprobs", "weights"):
        left, right = getattr(one, name), getattr(other, name)
        if left != right:
            first = next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), None)  # noqa: B905 - of unequal length, which is told beside
            found.append(f"{name} differ from number {first} on ({len(left)} and {len(right)})")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        started = time.monotonic()
        quiet = calm(Path(directory) / "calm", asked.steps)
        print(f"undisturbed: {asked.steps} steps in {time.monotonic() - started:.0f} s", flush=True)
        started = time.monotonic()
        seen = storm(
            Path(directory) / "storm",
            asked.steps,
            asked.kills,
            asked.seed,
            lambda n, answered: print(f"kill {n}: {answered} answers so far", flush=True),
        )
        print(f"killed: {asked.steps} steps in {time.monotonic() - started:.0f} s")
        found = differences(quiet, seen)
        print(json.dumps({"answers": seen.answered, "weights": seen.weights, "differences": found}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
