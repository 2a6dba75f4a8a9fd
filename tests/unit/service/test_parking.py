"""Adapters beyond the memory set aside for them: parked and brought back, never in the midst of work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tinsmith.service.core import Service, SessionFacts
from tinsmith.service.engine.backend import AdamSpec, LoraSpec, LossSpec, SampleJob, TrainItem
from tinsmith.service.engine.fake import FakeBackend
from tinsmith.service.ops import Freeze, OpKind, Outcome, Pass, Sample
from tinsmith.settings import EMBEDDED_MODEL

SPEC = LoraSpec(EMBEDDED_MODEL, rank=4, seed=1)
ONE_MODEL = FakeBackend().adapter_bytes(SPEC)
SECONDS = 20.0


class Interrupted(FakeBackend):
    """Calls `between` once, from the worker's thread, after the first micro-batch of a long pass."""

    between: Any = None

    def run_pass(self, model: str, items: Any, loss: Any, *, backward: bool) -> Iterator[Any]:
        for step in super().run_pass(model, items, loss, backward=backward):
            if isinstance(step, float) and self.between is not None:
                call, self.between = self.between, None
                call()
            yield step


async def done(service: Service, future: str) -> Outcome:
    outcome = await service.desk.result(future, SECONDS)
    assert outcome is not None
    return outcome


async def new_model(service: Service) -> tuple[str, str]:
    session = await service.open_session(SessionFacts([], {}))
    future, model = await service.create_model(session, 0, SPEC, {}, b"{}")
    assert (await done(service, future)).error is None
    return session, model


def passing(items: int) -> Pass:
    item = TrainItem(np.asarray([1, 2]), {"target_tokens": np.asarray([2, 3])})
    return Pass((item,) * items, LossSpec("cross_entropy", {}), backward=True)


async def submit_pass(service: Service, model: str, seq_id: int, items: int) -> str:
    return await service.desk.submit(OpKind.PASS, model, seq_id, passing(items), b"{}")


async def step(service: Service, model: str, seq_id: int) -> float:
    future = await service.desk.submit(OpKind.OPTIM, model, seq_id, AdamSpec(), b"{}")
    outcome = await done(service, future)
    assert outcome.error is None, outcome.error
    return orjson.loads(outcome.payload)["metrics"]["unclipped_grad_l2:mean"]


async def copy_of(service: Service, model_id: str, seq_id: int, number: int) -> str:
    model = service.model(model_id)
    freeze = Freeze(f"{model.session}:sample:{number}")
    assert (await done(service, await service.freeze(model, seq_id, freeze, b"{}"))).error is None
    return freeze.sampler


async def sample(service: Service, sampler_id: str, seq_id: int) -> str:
    sampler = service.sampler(sampler_id)
    job = SampleJob(EMBEDDED_MODEL, sampler.weights, (1, 2), max_tokens=2, stop=(), seed=3)
    return await service.desk.submit_sample(sampler, seq_id, Sample(job, sampler.source), b"{}")


async def interrupted_norm(directory: Path, adapter_bytes: int) -> float:
    """The gradient of a long pass in whose midst a sample asks for weights that may not be in memory."""
    backend = Interrupted()
    service = Service(backend, directory, adapter_bytes=adapter_bytes)
    await service.start()
    loop = asyncio.get_running_loop()
    _, model = await new_model(service)
    old = await copy_of(service, model, 1, 0)
    for seq_id in range(2, 6):  # newer copies, so that the old one makes room for them
        await copy_of(service, model, seq_id, seq_id)
    asked: list[str] = []

    def ask() -> None:
        asked.append(asyncio.run_coroutine_threadsafe(sample(service, old, 0), loop).result())

    backend.between = ask
    passed = await done(service, await submit_pass(service, model, 6, items=16))
    assert passed.error is None
    assert (await done(service, asked[0])).error is None
    found = await step(service, model, 7)
    await service.close()
    return found


async def test_a_model_is_not_parked_in_the_midst_of_a_pass(tmp_path: Path) -> None:
    roomy = await interrupted_norm(tmp_path / "roomy", 100 * ONE_MODEL)
    tight = await interrupted_norm(tmp_path / "tight", ONE_MODEL)
    assert tight == roomy > 0


async def test_a_gradient_is_parked_with_its_model(tmp_path: Path) -> None:
    norms: list[float] = []
    for room in (100, 1):
        service = Service(FakeBackend(), tmp_path / str(room), adapter_bytes=room * ONE_MODEL)
        await service.start()
        models = [(await new_model(service))[1] for _ in range(3)]
        for model in models:
            await done(service, await submit_pass(service, model, 1, items=2))
        assert service.counts()["models_parked"] == (2 if room == 1 else 0)
        norms += [await step(service, model, 2) for model in models]
        await service.close()
    assert norms[:3] == norms[3:]
    assert norms[0] > 0


@pytest.mark.parametrize("harm", ["cut", "flipped", "gone"])
async def test_a_damaged_parked_model_is_a_sentence_and_others_go_on(
    tmp_path: Path, harm: str
) -> None:
    service = Service(FakeBackend(), tmp_path, adapter_bytes=ONE_MODEL)
    await service.start()
    _, parked = await new_model(service)
    await done(service, await submit_pass(service, parked, 1, items=2))
    _, other = await new_model(service)
    assert service.counts()["models_parked"] == 1
    for file in (tmp_path / "models" / parked).iterdir():
        match harm:
            case "cut":
                file.write_bytes(file.read_bytes()[:100])
            case "flipped":
                held = bytearray(file.read_bytes())
                held[len(held) // 2] ^= 1
                file.write_bytes(held)
            case _:
                file.unlink()
    for seq_id in (2, 3):  # every request is answered, not only the first
        future = await service.desk.submit(OpKind.OPTIM, parked, seq_id, AdamSpec(), b"{}")
        outcome = await done(service, future)
        assert outcome.error is not None
        assert parked in outcome.error or "saved state" in outcome.error
        assert "Error" not in outcome.error, "a sentence, not an exception's name"
    await done(service, await submit_pass(service, other, 1, items=2))
    assert await step(service, other, 2) > 0
    await service.close()
