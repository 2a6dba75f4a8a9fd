"""Many at once against a real service: samples of one client with heartbeats beside them, and tenants training.

`python -m tests.load.crowd` is the whole of it (`make load`); the tests run a small one.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tinker
from tinker.resources.service import AsyncServiceResource

from tests.chaos.storm import Server
from tinsmith.settings import EMBEDDED_MODEL, LOCAL_API_KEY

SAMPLE_TOKENS = 16
SLOWEST_HEARTBEAT = 2.0  # seconds


@contextmanager
def served(directory: Path) -> Iterator[Server]:
    server = Server(directory)
    server.start()
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


def _client(url: str) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=url, api_key=LOCAL_API_KEY)


# samples of one client


@dataclass
class Crowd:
    """What came of many samples at once."""

    seconds: float
    answers: list[tinker.SampleResponse]
    heartbeats: list[float]  # of a probe on its own connection
    sdk_heartbeats: list[float]  # of the client itself, in the midst of its samples
    held_up: float  # longest that the client's own event loop did not come round

    @property
    def tokens(self) -> list[list[int]]:
        return [list(answer.sequences[0].tokens) for answer in self.answers]


@contextmanager
def _probing(url: str) -> Iterator[list[float]]:
    """Heartbeats from another process, so that a busy client does not count as a slow service."""
    taken: list[float] = []
    command = [sys.executable, "-m", "tests.load.heartbeats", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as probe:
        assert probe.stdout is not None
        probe.stdout.readline()  # the first one was answered
        try:
            yield taken
        finally:
            out, _ = probe.communicate()
    taken += json.loads(out)


@contextmanager
def _noting_sdk_heartbeats() -> Iterator[list[float]]:
    taken: list[float] = []
    original = AsyncServiceResource.session_heartbeat

    async def timed(self: AsyncServiceResource, **settings: Any) -> Any:
        started = time.monotonic()
        try:
            return await original(self, **settings)
        finally:
            taken.append(time.monotonic() - started)

    AsyncServiceResource.session_heartbeat = timed  # type: ignore[method-assign]
    try:
        yield taken
    finally:
        AsyncServiceResource.session_heartbeat = original  # type: ignore[method-assign]


@contextmanager
def _ticking(client: tinker.ServiceClient) -> Iterator[list[float]]:
    """How late a task on the SDK's event loop comes to its turn: so long its requests wait, too."""
    late = [0.0]

    async def tick() -> None:
        while True:
            started = time.monotonic()
            await asyncio.sleep(0.02)
            late.append(time.monotonic() - started - 0.02)

    ticker = asyncio.run_coroutine_threadsafe(tick(), client.holder.get_loop())
    try:
        yield late
    finally:
        ticker.cancel()


def prompt_of(number: int) -> tinker.ModelInput:
    source = random.Random(number)
    return tinker.ModelInput.from_ints([source.randrange(4, 64) for _ in range(4 + number % 13)])


async def _sample_all(sampler: tinker.SamplingClient, count: int) -> list[tinker.SampleResponse]:
    """Every request is made twice, half the crowd apart, and must be answered alike."""

    def one(number: int) -> Any:
        params = tinker.SamplingParams(
            max_tokens=SAMPLE_TOKENS, seed=number, stop=[], temperature=1.0
        )
        return sampler.sample_async(prompt_of(number), 1, params)

    return await asyncio.gather(*(one(number % (count // 2)) for number in range(count)))


def sample_crowd(url: str, count: int) -> Crowd:
    client = _client(url)
    sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
    asyncio.run(_sample_all(sampler, 2))  # loads the model
    with _noting_sdk_heartbeats() as own, _ticking(client) as late, _probing(url) as taken:
        started = time.monotonic()
        answers = asyncio.run(_sample_all(sampler, count))
        seconds = time.monotonic() - started
    client.close("success").result()
    return Crowd(seconds, answers, taken, own, max(late))


# tenants


@dataclass
class Run:
    """Everything one tenant saw, and its weights at the end."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    weights: str = ""


def _datum(tenant: int, step: int, number: int, loss: str) -> tinker.Datum:
    source = random.Random(f"{tenant} {step} {number}")
    length = source.randrange(4, 12 + 2 * tenant)
    tokens = [source.randrange(4, 64) for _ in range(length + 1)]

    def floats(low: float, high: float) -> tinker.TensorData:
        return tinker.TensorData(
            data=[source.uniform(low, high) for _ in range(length)], dtype="float32"
        )

    inputs = {"target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64")}
    if loss == "cross_entropy":
        inputs["weights"] = floats(0.5, 1.5)
    else:
        inputs |= {"logprobs": floats(-5.0, -3.0), "advantages": floats(-1.0, 1.0)}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def _adam(tenant: int) -> tinker.AdamParams:
    return tinker.AdamParams(
        learning_rate=0.002 * (1 + tenant % 4),
        weight_decay=0.1 if tenant % 3 == 0 else 0.0,
        grad_clip_norm=1.0 if tenant % 4 == 1 else 0.0,
    )


def _checksum(directory: Path, path: str) -> str:
    """Of a saved checkpoint's weights and optimizer state."""
    place = directory / "checkpoints" / path.removeprefix("tinker://")
    files = sorted(place.glob("*.safetensors"))
    assert len(files) == 2
    return " ".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)


def train_tenant(url: str, directory: Path, tenant: int, steps: int) -> Run:
    """A training of its own: session, rank, seed, data, loss and optimizer settings."""
    client, seen = _client(url), Run()
    rank = (4, 8, 16)[tenant % 3]
    trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=rank, seed=tenant)
    loss = "importance_sampling" if tenant % 5 == 2 else "cross_entropy"
    for step in range(steps):
        data = [_datum(tenant, step, number, loss) for number in range(2 + tenant % 5)]
        passed = trainer.forward_backward(data, loss)
        stepped = trainer.optim_step(_adam(tenant))
        seen.losses.append(passed.result().metrics["loss:sum"])
        seen.norms.append((stepped.result().metrics or {})["unclipped_grad_l2:mean"])
        if step % 5 == 4:
            sampler = trainer.save_weights_and_get_sampling_client()
            params = tinker.SamplingParams(max_tokens=8, seed=step, stop=[], temperature=1.0)
            for sequence in sampler.sample(prompt_of(tenant), 2, params).result().sequences:
                seen.tokens.append(list(sequence.tokens))
                seen.logprobs.append([float(one) for one in sequence.logprobs or []])
    path = trainer.save_state("end").result().path
    seen.weights = _checksum(directory, path)
    client.close("success").result()
    return seen


def train_together(url: str, directory: Path, tenants: int, steps: int) -> list[Run]:
    with ThreadPoolExecutor(tenants) as threads:
        runs = [
            threads.submit(train_tenant, url, directory, tenant, steps) for tenant in range(tenants)
        ]
        return [run.result() for run in runs]


def train_alone(url: str, directory: Path, tenants: int, steps: int) -> list[Run]:
    """One after the other, each with the service to itself."""
    return [train_tenant(url, directory, tenant, steps) for tenant in range(tenants)]


def differences(together: list[Run], alone: list[Run]) -> list[str]:
    return [
        f"tenant {tenant}: {name} differ"
        for tenant, (one, other) in enumerate(zip(together, alone, strict=True))
        for name in ("losses", "norms", "tokens", "logprobs", "weights")
        if getattr(one, name) != getattr(other, name)
    ]


# the whole of it


def _report_samples(crowd: Crowd) -> bool:
    count, tokens = len(crowd.answers), crowd.tokens
    whole = all(len(one) == SAMPLE_TOKENS for one in tokens)
    alike = tokens[: count // 2] == tokens[count // 2 :]
    slowest = max(crowd.heartbeats)
    own = f"{max(crowd.sdk_heartbeats):.3f} s" if crowd.sdk_heartbeats else "none was due"
    print(
        f"{count} samples of {SAMPLE_TOKENS} tokens: {crowd.seconds:.1f} s, "
        f"{count * SAMPLE_TOKENS / crowd.seconds:.0f} tokens/s; "
        f"all whole: {whole}; the same request answered alike: {alike}\n"
        f"heartbeats: {len(crowd.heartbeats)}, slowest {slowest:.3f} s; "
        f"the client's own: {len(crowd.sdk_heartbeats)}, slowest {own} "
        f"(its event loop was held up for up to {crowd.held_up:.3f} s at a time)",
        flush=True,
    )
    return whole and alike and slowest < SLOWEST_HEARTBEAT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--tenants", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        with served(here / "crowd") as server:
            good = _report_samples(sample_crowd(server.url, asked.samples))
        with served(here / "together") as server:
            started = time.monotonic()
            together = train_together(server.url, server.directory, asked.tenants, asked.steps)
            seconds = time.monotonic() - started
        with served(here / "alone") as server:
            started = time.monotonic()
            alone = train_alone(server.url, server.directory, asked.tenants, asked.steps)
            one_by_one = time.monotonic() - started
    found = differences(together, alone)
    print(
        f"{asked.tenants} tenants x {asked.steps} steps: {seconds:.1f} s together, "
        f"{one_by_one:.1f} s one after the other; differences: {found or 'none'}"
    )
    print(f"load average {os.getloadavg()[0]:.1f}")
    return 0 if good and not found else 1


if __name__ == "__main__":
    sys.exit(main())
