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


# samples


def sample_of(client: int, number: int) -> Op:
    return sample(f"c{client}:sample:0/{number}")


def client_of(op: Op) -> str:
    return op.future_id.partition(":")[0]


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=5), st.lists(st.integers(1, 7), min_size=1)
)
def test_clients_take_turns_for_samples(lengths: list[int], rooms: list[int]) -> None:
    """However many each has and however little room there is, nobody gets two while another gets none."""
    scheduler = Scheduler()
    for client, length in enumerate(lengths):
        for number in range(length):
            scheduler.submit(sample_of(client, number))
    taken: list[Op] = []
    for turn in range(sum(lengths)):
        batch = scheduler.next(rooms[turn % len(rooms)])
        if batch is None:
            break
        assert 1 <= len(batch.ops) <= rooms[turn % len(rooms)]
        taken += batch.ops
        assert scheduler.waiting_samples == sum(lengths) - len(taken)
    assert len(taken) == sum(lengths)
    left = {f"c{client}": length for client, length in enumerate(lengths) if length}
    while taken:  # rounds: one of each that still has some
        round_, taken = taken[: len(left)], taken[len(left) :]
        assert sorted(map(client_of, round_)) == sorted(left)
        left = {client: length - 1 for client, length in left.items() if length > 1}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=12), st.integers(1, 12))
def test_room_is_counted_in_samples_and_a_large_request_still_runs(
    requests: list[tuple[int, int]], room: int
) -> None:
    scheduler = Scheduler()
    for number, (client, count) in enumerate(requests):
        job = SampleJob("base", None, (1,), num_samples=count)
        scheduler.submit(Op(f"c{client}:{number}", OpKind.SAMPLE, None, 0, Sample(job)))
    taken = 0
    while (batch := scheduler.next(room)) is not None:
        sizes = [op.payload.job.num_samples for op in batch.ops]
        assert sum(sizes[:-1]) < room
        taken += len(sizes)
        assert sum(sizes) >= room or taken == len(requests)
    assert taken == len(requests)


class Line:
    """What the scheduler should do with samples, in the plainest way."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[str]] = {}
        self.since: dict[str, int] = {}  # when a client last got a turn, or began to wait
        self.moment = 0

    def submit(self, op: Op) -> None:
        queue = self.waiting.setdefault(client_of(op), [])
        if not queue:
            self._now(client_of(op))
        queue.append(op.future_id)

    def take(self, op: Op) -> None:
        """The op that got a turn is its client's oldest, and its client the one that waits longest."""
        client = client_of(op)
        assert self.waiting[client].pop(0) == op.future_id
        waiting = [other for other, queue in self.waiting.items() if queue and other != client]
        assert all(self.since[client] < self.since[other] for other in waiting)
        self._now(client)

    def cancel(self, future_id: str) -> bool:
        for queue in self.waiting.values():
            if future_id in queue:
                queue.remove(future_id)
                return True
        return False

    def _now(self, client: str) -> None:
        self.moment += 1
        self.since[client] = self.moment

    @property
    def count(self) -> int:
        return sum(map(len, self.waiting.values()))


@given(st.data())
def test_samples_come_and_go_as_in_a_plain_line(data: st.DataObject) -> None:
    scheduler, line = Scheduler(), Line()
    submitted: list[str] = []
    ran: list[str] = []
    cancelled: list[str] = []
    for number in range(data.draw(st.integers(0, 40))):
        match data.draw(st.sampled_from(["submit", "submit", "next", "cancel"])):
            case "submit":
                op = sample_of(data.draw(st.integers(0, 3)), number)
                scheduler.submit(op)
                line.submit(op)
                submitted.append(op.future_id)
            case "next":
                room = data.draw(st.integers(0, 4))
                batch = scheduler.next(room)
                assert (batch is None) == (room == 0 or line.count == 0)
                for op in batch.ops if batch else ():
                    line.take(op)
                    ran.append(op.future_id)
                assert batch is None or len(batch.ops) == min(room, len(batch.ops) + line.count)
            case _ if submitted:
                victim = data.draw(st.sampled_from(submitted))
                was_waiting = line.cancel(victim)
                assert scheduler.cancel(victim) == was_waiting
                cancelled += [victim] * was_waiting
        assert scheduler.waiting_samples == scheduler.counts()["waiting_samples"] == line.count
        assert scheduler.waiting == (line.count > 0)
    ran += [op.future_id for batch in drain(scheduler) for op in batch.ops]
    assert sorted(ran + cancelled) == sorted(submitted)
    assert scheduler.waiting_samples == 0


@given(arrivals(), st.integers(0, 3))
def test_without_room_for_samples_training_goes_on(ops: list[Op], room: int) -> None:
    scheduler = Scheduler()
    for op in ops:
        scheduler.submit(op)
    samples = sum(op.kind is OpKind.SAMPLE for op in ops)
    taken = scheduler.next(room)
    if samples and room:
        assert taken is not None
        assert len(taken.ops) == min(room, samples)
    elif taken is not None:
        scheduler.done(taken)
    trained: list[Op] = []
    if taken is not None and taken.kind is not OpKind.SAMPLE:
        trained += taken.ops
    while (batch := scheduler.next(0)) is not None:
        assert batch.kind is not OpKind.SAMPLE
        trained += batch.ops
        scheduler.done(batch)
    assert len(trained) == len(ops) - samples
