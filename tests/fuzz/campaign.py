"""One campaign: attack a real server, then see that it is alive, within its memory, and still trains."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import tinker

from tests.fuzz.attack import Report, attack
from tests.fuzz.mutations import bombs, malformed
from tests.fuzz.schema import from_document
from tests.fuzz.seeds import good_requests, make_things
from tests.fuzz.server import Target, serving
from tinsmith.settings import EMBEDDED_MODEL, LOCAL_API_KEY

MIB = 2**20
MOST_GROWTH = 2048 * MIB  # beyond what the server takes at rest, at any moment


@dataclass(frozen=True)
class Result:
    report: Report
    seconds: float
    before: int  # resident bytes at rest, with the model loaded
    peak: int
    after: int

    def lines(self) -> list[str]:
        statuses = ", ".join(f"{k}: {v}" for k, v in sorted(self.report.statuses.items()))
        origins = ", ".join(f"{k}: {v}" for k, v in sorted(self.report.origins.items()))
        return [
            f"{self.report.sent} requests in {self.seconds:.0f} s",
            f"by origin  {origins}",
            f"by answer  {statuses}",
            f"memory     {self.before / MIB:.0f} MiB before, {self.peak / MIB:.0f} MiB at most, "
            f"{self.after / MIB:.0f} MiB after",
            f"failures   {len(self.report.failures)}",
        ]


def campaign(directory: Path, *, each: int, mutations: int, seed: int, every: int = 1) -> Result:
    """`each` requests of schemathesis for every operation, so many mutations, and the bombs."""
    rng = random.Random(seed)
    report = Report()
    with serving(directory, "--log-format", "json") as target:
        train_a_step(target)
        with httpx.Client(base_url=target.url, timeout=60) as client:
            things = make_things(client)
            document = client.get("/openapi.json").json()
        before = target.resident()
        start = time.monotonic()
        own = malformed(good_requests(things), things, mutations, rng)
        attack(target.url, own, report)
        attack(target.url, bombs(), report)
        attack(target.url, from_document(document, things, each, rng, every), report)
        seconds = time.monotonic() - start
        assert target.alive, target.log.read_text()[-3000:]
        train_a_step(target)
        report.failures += [f"in the log: {one}" for one in target.tracebacks()]
        return Result(report, seconds, before, target.peak, target.resident())


def train_a_step(target: Target) -> None:
    """What a normal client does."""
    client = tinker.ServiceClient(base_url=target.url, api_key=LOCAL_API_KEY)
    trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=4, seed=1)
    tokens = list(range(10, 20))
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": np.asarray(tokens[1:], dtype=np.int64)},
    )
    losses: list[float] = []
    for _ in range(2):
        passed = trainer.forward_backward([datum], "cross_entropy").result(timeout=120)
        trainer.optim_step(tinker.AdamParams(learning_rate=1e-2)).result(timeout=120)
        losses.append(passed.metrics["loss:sum"])
    assert losses[1] < losses[0]
    sampler = trainer.save_weights_and_get_sampling_client()
    params = tinker.SamplingParams(max_tokens=2, stop=[])
    sampled = sampler.sample(tinker.ModelInput.from_ints(tokens), 1, params).result(timeout=120)
    assert len(sampled.sequences[0].tokens) == 2
    client.close("success").result()


def check(result: Result) -> None:
    failures = list(itertools.islice(result.report.failures, 5))
    assert not failures, "\n\n".join(failures)
    grown = result.peak - result.before
    assert grown < MOST_GROWTH, f"the server grew by {grown / MIB:.0f} MiB"
