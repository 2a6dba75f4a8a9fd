"""Many samples at once: clients take turns, and a service that has too many says so in the SDK's terms."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker

from tests.contract.conftest import Running, serving
from tests.contract.data import prompt
from tinsmith.service import desk, metrics, worker
from tinsmith.service.core import Service
from tinsmith.service.engine import sampler
from tinsmith.service.engine.backend import Finished, Partial
from tinsmith.service.engine.fake import FakeBackend
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

FLOOD = 300
ROOM = 8  # samples that the engine has at once
SHORT = tinker.SamplingParams(max_tokens=4, stop=[])


class Pace:
    """Decodes only once as many samples arrived as it waits for, and no further than up to a session's."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.expected = 0
        self.everybody = threading.Event()
        self.hold_after: str | None = None
        self.released = threading.Event()
        self.finished: list[str] = []  # sessions, in order
        self.service: Service | None = None

    def step(self) -> list[Finished | Partial]:
        assert self.service is not None
        counts = self.service.counts()
        here = counts["waiting_samples"] + counts["sampling"] + len(self.finished)
        if here == FLOOD:
            self.everybody.set()
        held = self.hold_after in self.finished and not self.released.is_set()
        if here < self.expected or held:
            return []
        told = super().step()  # type: ignore[misc]
        self.finished += [one.job_id.partition(":")[0] for one in told]
        return told


class Paced(Pace, FakeBackend):
    pass


class PacedTorch(Pace, TorchBackend):
    pass


@pytest.fixture
def paced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(worker, "SAMPLES_IN_FLIGHT", ROOM)
    backend = Paced()
    with serving(backend, tmp_path) as running:
        backend.service = running.service
        yield running
        backend.expected = 0
        backend.released.set()


def test_one_sample_does_not_wait_for_another_clients_flood(paced: Running) -> None:
    backend = paced.backend
    assert isinstance(backend, Paced)
    many, few = paced.client(), paced.client()
    backend.expected = FLOOD + 1
    backend.hold_after = few.holder.get_session_id()
    flood = many.create_sampling_client(base_model=EMBEDDED_MODEL)
    waiting = [flood.sample(prompt(), 1, SHORT) for _ in range(FLOOD)]
    assert backend.everybody.wait(60)
    lone = few.create_sampling_client(base_model=EMBEDDED_MODEL)
    answer = lone.sample(prompt(), 1, SHORT).result(timeout=60)
    # The engine stands still after this one: those done by now were done before it, or with it.
    assert len(answer.sequences[0].tokens) == 4
    assert len(backend.finished) <= 2 * ROOM
    assert sum(one.done() for one in waiting) <= 2 * ROOM
    backend.released.set()
    assert all(len(one.result(timeout=60).sequences) == 1 for one in waiting)
    assert len(backend.finished) == FLOOD + 1
    for client in (many, few):
        client.close("success").result()


def refusals() -> float:
    """How many samples were asked to come again, as the service counts them."""
    return metrics.REGISTRY.value(
        "tinsmith_requests_total", method="POST", route="/api/v1/asample", status="429"
    )


class Overrun(FakeBackend):
    """Decodes only after a sample was asked to come again."""

    before: float | None = None

    def step(self) -> list[Finished | Partial]:
        if self.before is not None:
            if refusals() == self.before:
                return []
            self.before = None
        return super().step()


def test_too_many_samples_are_asked_to_come_again_and_all_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SAMPLES_IN_FLIGHT", 2)
    monkeypatch.setattr(desk, "MAX_WAITING_SAMPLES", 4)
    backend = Overrun()
    backend.before = refusals()
    with serving(backend, tmp_path) as running:
        client = running.client()
        crowded = client.create_sampling_client(base_model=EMBEDDED_MODEL)
        waiting = [crowded.sample(prompt(), 1, SHORT) for _ in range(40)]
        answers = [one.result(timeout=120) for one in waiting]
        assert backend.before is None
        assert all(len(one.sequences[0].tokens) == 4 for one in answers)
        assert len({one.sequences[0].sequence_id for one in answers}) == 40
        assert running.service.counts()["waiting_samples"] == 0
        client.close("success").result()


def test_turns_are_taken_when_the_engine_is_full_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the engine has been given, it begins the oldest first: so it is not given all at once."""
    monkeypatch.setattr(sampler, "MAX_ROWS", ROOM)
    monkeypatch.setattr(worker, "BACKLOG", ROOM)
    backend = PacedTorch(device="cpu", dtype="float32", threads=1)
    with serving(backend, tmp_path) as running:
        backend.service = running.service
        backend.expected = FLOOD + 1
        many, few = running.client(), running.client()
        backend.hold_after = few.holder.get_session_id()
        flood = many.create_sampling_client(base_model=EMBEDDED_MODEL)
        waiting = [flood.sample(prompt(), 2, SHORT) for _ in range(FLOOD)]
        assert backend.everybody.wait(60)
        lone = few.create_sampling_client(base_model=EMBEDDED_MODEL)
        assert lone.sample(prompt(), 1, SHORT).result(timeout=60).sequences
        assert len(backend.finished) <= 4 * ROOM
        backend.released.set()
        assert all(len(one.result(timeout=60).sequences) == 2 for one in waiting)
        for client in (many, few):
            client.close("success").result()
