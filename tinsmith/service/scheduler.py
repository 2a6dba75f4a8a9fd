"""Which batch runs next; pure: no clock, no threads, no engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinsmith.service.engine.backend import ModelId
from tinsmith.service.ops import Batch, Op, OpKind, Pass

# A turn takes neighbouring small passes together; a big one is a turn by itself.
ITEMS_PER_TURN = 64


@dataclass
class _Lane:
    """The ops of one model, by number; None stands for one that was cancelled."""

    expected: int = 0
    waiting: dict[int, Op | None] = field(default_factory=dict[int, Op | None])
    closing: Op | None = None

    def head(self) -> Op | None:
        """The op whose turn it is, past cancelled ones; None while its number has not arrived."""
        while self.expected in self.waiting and self.waiting[self.expected] is None:
            del self.waiting[self.expected]
            self.expected += 1
        return self.waiting.get(self.expected)

    def take(self) -> Op:
        op = self.waiting.pop(self.expected)
        assert op is not None
        self.expected += 1
        return op


class Scheduler:
    """Per model, ops run in seq_id order and a gap is held until the missing one arrives; only
    neighbouring passes of one model with the same loss and direction share a turn; samples need no
    order and merge across models; models take turns; one training batch is out at a time, samples
    go beside it. A cancelled op never runs, and a refused number is not waited
    for. A drop runs when nothing of its model is ready.
    """

    def __init__(self, items_per_turn: int = ITEMS_PER_TURN) -> None:
        self._items_per_turn = items_per_turn
        self._lanes: dict[ModelId, _Lane] = {}  # in order of turns
        self._samples: dict[str, Op] = {}
        self._lane_of: dict[str, tuple[ModelId, int]] = {}  # where a waiting op stands
        self._running: Batch | None = None

    def submit(self, op: Op) -> None:
        if op.kind is OpKind.SAMPLE:
            self._samples[op.future_id] = op
            return
        assert op.model is not None
        lane = self._lanes.setdefault(op.model, _Lane())
        if op.kind is OpKind.DROP:
            lane.closing = op
            return
        assert op.seq_id is not None
        lane.waiting[op.seq_id] = op
        self._lane_of[op.future_id] = (op.model, op.seq_id)

    def cancel(self, future_id: str) -> bool:
        """Whether the op was still waiting; if so it will never run."""
        if self._samples.pop(future_id, None) is not None:
            return True
        place = self._lane_of.pop(future_id, None)
        if place is None:
            return False
        model, seq_id = place
        self._lanes[model].waiting[seq_id] = None
        return True

    def skip(self, model: ModelId, seq_id: int) -> None:
        """A number that will never come: its request was refused, and the next one need not wait."""
        lane = self._lanes.setdefault(model, _Lane())
        if seq_id >= lane.expected:
            lane.waiting.setdefault(seq_id, None)

    def next(self) -> Batch | None:
        """The batch to run now; a training batch stays out until `done` is told."""
        if self._samples:
            ops = tuple(self._samples.values())
            self._samples.clear()
            return Batch(OpKind.SAMPLE, ops)
        if self._running is not None:
            return None
        for model, lane in self._lanes.items():
            if lane.head() is not None:
                self._running = self._turn(lane)
                self._lanes[model] = self._lanes.pop(model)  # to the end of the line
                return self._running
            if lane.closing is not None:
                self._running = Batch(OpKind.DROP, (lane.closing,))
                lane.closing = None
                return self._running
        return None

    def done(self, batch: Batch) -> None:
        if batch is self._running:
            self._running = None

    def forget(self, model: ModelId) -> list[Op]:
        """Ends a model's line; what still waited there can never run."""
        lane = self._lanes.pop(model, None)
        if lane is None:
            return []
        left = [op for op in lane.waiting.values() if op is not None]
        for op in left:
            self._lane_of.pop(op.future_id, None)
        return left

    @property
    def waiting(self) -> bool:
        """Whether `next` would give a batch once the running one is done."""
        return bool(self._samples) or any(
            lane.head() is not None or lane.closing is not None for lane in self._lanes.values()
        )

    def _turn(self, lane: _Lane) -> Batch:
        ops = [lane.take()]
        first = ops[0].payload
        if isinstance(first, Pass):
            room = self._items_per_turn - len(first.items)
            while (head := lane.head()) is not None and isinstance(head.payload, Pass):
                room -= len(head.payload.items)
                same = head.payload.loss == first.loss and head.payload.backward == first.backward
                if not same or room < 0:
                    break
                ops.append(lane.take())
        for op in ops:
            self._lane_of.pop(op.future_id, None)
        return Batch(ops[0].kind, tuple(ops))
