"""The scheduler's promises, over random arrivals, cancellations and turns."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith.service.engine.backend import AdamSpec, LossSpec, SampleJob, TrainItem
from tinsmith.service.ops import Batch, Drop, Op, OpKind, Pass, Sample
from tinsmith.service.scheduler import Scheduler

ITEM = TrainItem(np.zeros(1, dtype=np.int64), {})
LOSSES = (LossSpec("cross_entropy", {}), LossSpec("ppo", {"clip_low_threshold": 0.8}))
KINDS = ("optim", "a", "b", "forward")


def training(model: str, seq_id: int, kind: str, size: int = 1) -> Op:
    if kind == "optim":
        return Op(f"{model}/{seq_id}", OpKind.OPTIM, model, seq_id, AdamSpec())
    loss = LOSSES[kind == "b"]
    work = Pass((ITEM,) * size, loss, backward=kind != "forward")
    return Op(f"{model}/{seq_id}", OpKind.PASS, model, seq_id, work)


def sample(name: str) -> Op:
    return Op(name, OpKind.SAMPLE, None, 0, Sample(SampleJob("base", None, (1,))))


def drain(scheduler: Scheduler) -> list[Batch]:
    found = []
    while (batch := scheduler.next()) is not None:
        found.append(batch)
        scheduler.done(batch)
    return found


@st.composite
def arrivals(draw: st.DrawFn) -> list[Op]:
    """Numbered ops of up to four models and some samples, in any order."""
    ops = [sample(f"s{n}") for n in range(draw(st.integers(0, 4)))]
    for model in range(draw(st.integers(1, 4))):
        for seq_id in range(draw(st.integers(0, 8))):
            kind = draw(st.sampled_from(KINDS))
            ops.append(training(f"m{model}", seq_id, kind, draw(st.integers(1, 5))))
    return draw(st.permutations(ops))


@given(arrivals(), st.data())
def test_order_merging_and_completeness(ops: list[Op], data: st.DataObject) -> None:
    scheduler = Scheduler(items_per_turn=8)
    batches: list[Batch] = []
    running: list[Batch] = []
    for op in ops:
        scheduler.submit(op)
        if data.draw(st.booleans()) and (batch := scheduler.next()) is not None:
            batches.append(batch)
            if batch.kind is not OpKind.SAMPLE:
                assert not running, "one training batch is out at a time"
                running.append(batch)
        if running and data.draw(st.booleans()):
            scheduler.done(running.pop())
    if running:
        scheduler.done(running.pop())
    batches += drain(scheduler)

    ran = [op for batch in batches for op in batch.ops]
    assert sorted(op.future_id for op in ran) == sorted(op.future_id for op in ops)
    assert not scheduler.waiting
    for model in {op.model for op in ops if op.model}:
        numbers = [op.seq_id for op in ran if op.model == model]
        assert numbers == list(range(len(numbers)))
    for batch in batches:
        if batch.kind is OpKind.SAMPLE or len(batch.ops) == 1:
            continue
        works = [op.payload for op in batch.ops]
        assert len({op.model for op in batch.ops}) == 1
        assert all(isinstance(work, Pass) for work in works)
        assert len({(work.loss.name, work.backward) for work in works}) == 1
        assert sum(len(work.items) for work in works) <= 8


@given(arrivals(), st.data())
def test_a_gap_is_held_until_it_is_filled(ops: list[Op], data: st.DataObject) -> None:
    numbered = [op for op in ops if op.model]
    if not numbered:
        return
    missing = data.draw(st.sampled_from(numbered))
    scheduler = Scheduler()
    for op in ops:
        if op is not missing:
            scheduler.submit(op)
    early = [op for batch in drain(scheduler) for op in batch.ops]
    for op in early:
        if op.model == missing.model:
            assert op.seq_id is not None
            assert missing.seq_id is not None
            assert op.seq_id < missing.seq_id
    scheduler.submit(missing)
    late = [op for batch in drain(scheduler) for op in batch.ops]
    assert len(early) + len(late) == len(ops)


@given(arrivals(), st.data())
def test_cancelled_ops_never_run_and_hold_nothing_up(ops: list[Op], data: st.DataObject) -> None:
    scheduler = Scheduler()
    ran: list[str] = []
    cancelled: set[str] = set()
    for op in ops:
        scheduler.submit(op)
        if data.draw(st.booleans()):
            victim = data.draw(st.sampled_from(ops)).future_id
            if scheduler.cancel(victim):
                cancelled.add(victim)
                assert not scheduler.cancel(victim)
        if data.draw(st.booleans()) and (batch := scheduler.next()) is not None:
            ran += [op.future_id for op in batch.ops]
            scheduler.done(batch)
    ran += [op.future_id for batch in drain(scheduler) for op in batch.ops]
    assert not cancelled & set(ran)
    assert sorted(ran) == sorted({op.future_id for op in ops} - cancelled)


@given(arrivals(), st.data())
def test_a_refused_number_is_not_waited_for(ops: list[Op], data: st.DataObject) -> None:
    numbered = [op for op in ops if op.model]
    if not numbered:
        return
    refused = data.draw(st.sampled_from(numbered))
    scheduler = Scheduler()
    for op in ops:
        if op is refused:
            assert refused.model is not None
            assert refused.seq_id is not None
            scheduler.skip(refused.model, refused.seq_id)
        else:
            scheduler.submit(op)
    ran = [op.future_id for batch in drain(scheduler) for op in batch.ops]
    assert sorted(ran) == sorted(op.future_id for op in ops if op is not refused)


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_models_take_turns(lengths: list[int]) -> None:
    scheduler = Scheduler()
    for model, length in enumerate(lengths):
        for seq_id in range(length):
            scheduler.submit(training(f"m{model}", seq_id, "optim"))
    order = [batch.ops[0].model for batch in drain(scheduler)]
    left = {f"m{model}": length for model, length in enumerate(lengths)}
    since = dict.fromkeys(left, 0)
    for model in order:
        assert model is not None
        left[model] -= 1
        since[model] = 0
        for other in left:
            if other != model and left[other]:
                since[other] += 1
                assert since[other] < len(lengths), "nobody is passed over twice in a row"


@settings(max_examples=50)
@given(arrivals())
def test_a_drop_comes_last_and_gives_back_what_cannot_run(ops: list[Op]) -> None:
    scheduler = Scheduler()
    mine = [op for op in ops if op.model == "m0"]
    for op in mine:
        if op.seq_id != 3:
            scheduler.submit(op)
    scheduler.submit(Op("drop", OpKind.DROP, "m0", None, Drop("over")))
    batches = drain(scheduler)
    assert batches[-1].kind is OpKind.DROP
    ran = [op.seq_id for batch in batches[:-1] for op in batch.ops]
    assert ran == [op.seq_id for op in sorted(mine, key=lambda op: op.seq_id or 0)][:3]
    left = scheduler.forget("m0")
    assert {op.seq_id for op in left} == {op.seq_id for op in mine if (op.seq_id or 0) > 3}
    assert not scheduler.waiting
