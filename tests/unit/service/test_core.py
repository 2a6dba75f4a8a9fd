"""The Service itself, without HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith.errors import RequestError
from tinsmith.service import sweeper
from tinsmith.service.core import Service, SessionFacts
from tinsmith.service.engine.backend import AdamSpec, LoraSpec, LossSpec, SampleJob, TrainItem
from tinsmith.service.engine.fake import FakeBackend
from tinsmith.service.futures import FutureTable, LogKey
from tinsmith.service.ops import Op, OpKind, Outcome, Pass, Sample
from tinsmith.service.wire.compat import CLONE_STRIDE
from tinsmith.settings import EMBEDDED_MODEL

SPEC = LoraSpec(EMBEDDED_MODEL, rank=4, seed=1)
SECONDS = 20.0


class Gated(FakeBackend):
    """Holds optimizer steps and decode steps until they are let through, and notes the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.optim_gate = threading.Event()
        self.optim_gate.set()
        self.started = threading.Event()

    def optim_step(self, model: str, adam: AdamSpec) -> dict[str, float]:
        self.started.set()
        assert self.optim_gate.wait(SECONDS)
        self.calls.append("optim")
        return super().optim_step(model, adam)

    def run_pass(self, model: str, items: Any, loss: Any, *, backward: bool) -> Any:
        for step in super().run_pass(model, items, loss, backward=backward):
            self.calls.append("pass")
            yield step

    def step(self) -> Any:
        self.calls.append("step")
        return super().step()

    def drop(self, model: str) -> None:
        self.calls.append(f"drop {model}")
        super().drop(model)


@pytest.fixture
def backend() -> Gated:
    return Gated()


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
async def service(backend: Gated, clock: list[float], tmp_path: Path) -> AsyncIterator[Service]:
    service = Service(backend, tmp_path, idle_seconds=100.0, clock=lambda: clock[0])
    await service.start()
    yield service
    backend.optim_gate.set()
    await service.close()


async def new_model(service: Service) -> tuple[str, str]:
    session = await service.open_session(SessionFacts([], {}))
    future, model = await service.create_model(session, 0, SPEC, {}, b"{}")
    assert (await service.desk.result(future, SECONDS)) is not None
    return session, model


async def optim(service: Service, model: str, seq_id: int) -> str:
    return await service.desk.submit(OpKind.OPTIM, model, seq_id, AdamSpec(), b"")


def sample(max_tokens: int = 4) -> Sample:
    return Sample(SampleJob(EMBEDDED_MODEL, None, (1, 2), max_tokens=max_tokens, stop=()))


def passing(items: int) -> Pass:
    item = TrainItem(np.asarray([1, 2]), {"target_tokens": np.asarray([2, 3])})
    return Pass((item,) * items, LossSpec("cross_entropy", {}), backward=True)


async def test_the_same_number_is_the_same_future(service: Service, backend: Gated) -> None:
    _, model = await new_model(service)
    same = await asyncio.gather(*(optim(service, model, 1) for _ in range(5)))
    assert len(set(same)) == 1
    assert await service.desk.result(same[0], SECONDS)
    assert backend.calls.count("optim") == 1
    with pytest.raises(RequestError, match="seq_id 1"):
        await service.desk.submit(OpKind.PASS, model, 1, passing(1), b"")


async def test_a_gap_is_held(service: Service, backend: Gated) -> None:
    _, model = await new_model(service)
    later = await optim(service, model, 2)
    assert await service.desk.result(later, 0.0) is None
    assert backend.calls == []
    await optim(service, model, 1)
    assert await service.desk.result(later, SECONDS)
    assert backend.calls == ["optim", "optim"]


async def test_decoding_goes_on_between_micro_batches(service: Service, backend: Gated) -> None:
    session, model = await new_model(service)
    sampler = service.sampler(await service.create_sampler(session, 0, EMBEDDED_MODEL, None))
    backend.optim_gate.clear()
    await optim(service, model, 1)
    await asyncio.to_thread(backend.started.wait, SECONDS)  # so that all that follows is queued
    passed = await service.desk.submit(OpKind.PASS, model, 2, passing(16), b"")
    sampled = await service.desk.submit_sample(sampler, 0, sample(max_tokens=30), b"")
    backend.optim_gate.set()
    assert await service.desk.result(passed, SECONDS)
    assert await service.desk.result(sampled, SECONDS)
    first, last = (
        backend.calls.index("pass"),
        len(backend.calls) - backend.calls[::-1].index("pass"),
    )
    assert backend.calls[first:last] == ["pass", "step"] * 3 + ["pass"]


async def test_waiting_and_running_work_can_be_cancelled(service: Service, backend: Gated) -> None:
    session, model = await new_model(service)
    sampler = service.sampler(await service.create_sampler(session, 0, EMBEDDED_MODEL, None))
    backend.optim_gate.clear()
    await optim(service, model, 1)
    waiting = await optim(service, model, 2)
    queued = await service.desk.submit_sample(sampler, 0, sample(), b"")
    assert await service.desk.cancel(waiting)
    assert await service.desk.cancel(queued)
    backend.optim_gate.set()
    last = await optim(service, model, 3)
    for one in (waiting, queued):
        outcome = await service.desk.result(one, SECONDS)
        assert outcome is not None
        assert outcome.error == "cancelled by the client."
    assert await service.desk.result(last, SECONDS)
    assert backend.calls.count("optim") == 2
    assert not await service.desk.cancel(last)
    assert not await service.desk.cancel("unknown")


async def test_completions_are_told_per_client(service: Service) -> None:
    session, _ = await new_model(service)
    name = await service.create_sampler(session, 0, EMBEDDED_MODEL, None)
    sampler = service.sampler(name)
    waiting = asyncio.create_task(service.desk.finished(name, 0, 0, SECONDS))
    mine = await service.desk.submit_sample(sampler, 0, sample(), b"")
    clones = await service.desk.submit_sample(sampler, 3 * CLONE_STRIDE, sample(), b"")
    found, cursor = await waiting
    assert [one.future_id for one in found] == [mine]
    again, _ = await service.desk.finished(name, 0, 0, SECONDS)
    assert [one.future_id for one in again] == [mine], "an answer that got lost can be asked again"
    nothing, same = await service.desk.finished(name, 0, cursor, 0.0)
    assert (nothing, same) == ([], cursor)
    others, _ = await service.desk.finished(name, 3, 0, SECONDS)
    assert [one.future_id for one in others] == [clones]
    service.desk.retrieved(name, [mine, clones, "somebody/else"])
    await service.open_session(SessionFacts([], {}))  # writes are in order: the deletion is done
    with pytest.raises(RequestError, match="no future"):
        await service.desk.result(mine, 0.0)


async def test_a_sessions_end_lets_its_models_go(service: Service, backend: Gated) -> None:
    session, model = await new_model(service)
    queued = await optim(service, model, 1)
    held = await optim(service, model, 5)
    await service.finish_session(session, "success")
    await service.finish_session(session, "errored")
    done = await service.desk.result(queued, SECONDS)
    gone = await service.desk.result(held, SECONDS)
    assert done is not None
    assert done.error is None
    assert gone is not None
    assert "success" in (gone.error or "")
    assert backend.calls == ["optim", f"drop {model}"]
    with pytest.raises(RequestError, match="is over"):
        await service.create_model(session, 1, SPEC, {}, b"{}")


async def test_silent_sessions_are_swept_and_idleness_is_told(
    service: Service, backend: Gated, clock: list[float]
) -> None:
    idle: list[bool] = []
    service.on_idle = lambda: idle.append(True)
    session, model = await new_model(service)
    clock[0] = 99.0
    service.heartbeat(session)
    service.touch()
    clock[0] = 99.0 + sweeper.STALE_SECONDS
    service.touch()
    await service.sweep()
    assert not idle
    service.model(model)
    clock[0] += sweeper.STALE_SECONDS + 1
    await service.sweep()
    with pytest.raises(RequestError, match="no heartbeat"):
        service.model(model)
    while service._worker.busy:  # noqa: ASYNC110  the session's models are being dropped
        await asyncio.sleep(0)
    await service.sweep()
    assert idle[-1]


async def test_closing_wakes_those_who_wait(service: Service, backend: Gated) -> None:
    _, model = await new_model(service)
    held = await optim(service, model, 9)
    waiting = asyncio.create_task(service.desk.result(held, SECONDS))
    await asyncio.sleep(0)
    service.begin_close()
    assert await asyncio.wait_for(waiting, SECONDS) is None


async def test_a_model_that_cannot_be_made_fails_all_that_follows(tmp_path: Path) -> None:
    class Broken(FakeBackend):
        def create(self, model: str, spec: LoraSpec) -> None:
            raise RuntimeError("no memory")

    service = Service(Broken(), tmp_path)
    await service.start()
    session = await service.open_session(SessionFacts([], {}))
    created, model = await service.create_model(session, 0, SPEC, {}, b"{}")
    first = await service.desk.result(created, SECONDS)
    assert first is not None
    assert first.category == "server"
    second = await service.desk.result(await optim(service, model, 1), SECONDS)
    assert second is not None
    assert "no memory" in (second.error or "")
    await service.close()


async def test_memory_is_bounded() -> None:
    table = FutureTable(kept_bytes=100, kept_futures=3)
    key = LogKey("s", 0)
    for n in range(6):
        op = Op(f"s/{n}", OpKind.SAMPLE, None, n, sample())
        table.add(op, key)
        table.resolve([(op, Outcome(b"x" * 10))])
    assert [n for n in range(6) if table.get(f"s/{n}")] == [3, 4, 5]
    op = Op("s/9", OpKind.SAMPLE, None, 9, sample())
    table.add(op, key)
    table.resolve([(op, Outcome(b"x" * 1000))])
    assert [n for n in range(10) if table.get(f"s/{n}")] == [9]
    found, _ = await table.completions(key, 0, 0.0)
    assert len(found) == 7


def test_when_a_service_is_idle() -> None:
    assert sweeper.is_idle(0.0, False, 10.0, 10.0)
    assert not sweeper.is_idle(0.0, True, 10.0, 10.0)
    assert not sweeper.is_idle(1.0, False, 10.0, 10.0)
    assert not sweeper.is_idle(0.0, False, 1e9, 0.0)
