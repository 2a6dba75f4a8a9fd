"""Which batch runs next; pure: no clock, no threads, no engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinsmith.service.engine.backend import ModelId
from tinsmith.service.ops import Batch, Op, OpKind, Pass, Sample

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
    neighbouring passes of one model with the same loss and direction share a turn; models take
    turns; one training batch is out at a time, samples go beside it. Samples need no order and merge
    across models; when there are more than there is room for, clients take turns. A cancelled op
    never runs, and a refused number is not waited for. A drop runs when nothing of its model is
    ready.
    """

    def __init__(self, items_per_turn: int = ITEMS_PER_TURN) -> None:
        self._items_per_turn = items_per_turn
        self._lanes: dict[ModelId, _Lane] = {}  # in order of turns
        # By client (the session an id begins with), in order of turns.
        self._samples: dict[str, dict[str, Op]] = {}
        self.waiting_samples = 0
        self._lane_of: dict[str, tuple[ModelId, int]] = {}  # where a waiting op stands
        self._running: Batch | None = None

    def submit(self, op: Op) -> None:
        if op.kind is OpKind.SAMPLE:
            self._samples.setdefault(_client(op.future_id), {})[op.future_id] = op
            self.waiting_samples += 1
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
        queue = self._samples.get(_client(future_id), {})
        if queue.pop(future_id, None) is not None:
            self.waiting_samples -= 1
            if not queue:
                del self._samples[_client(future_id)]
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

    def resume(self, model: ModelId, expected: int) -> None:
        """A model's line begins at this number: what came before is done."""
        self._lanes.setdefault(model, _Lane()).expected = expected

    def next(self, room: int = 1 << 30) -> Batch | None:
        """The batch to run now, with about `room` samples; a training batch stays out until `done`."""
        if self._samples and room > 0:
            return Batch(OpKind.SAMPLE, tuple(self._take_samples(room)))
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
        """Whether `next` would give a batch once the running one is done and there is room."""
        return bool(self._samples) or any(
            lane.head() is not None or lane.closing is not None for lane in self._lanes.values()
        )

    def counts(self) -> dict[str, int]:
        """Ops that wait, by whether they train or sample."""
        return {
            "waiting_training": len(self._lane_of),
            "waiting_samples": self.waiting_samples,
        }

    def _take_samples(self, room: int) -> list[Op]:
        """One request of each client in turn, oldest first, until there is no room; the last may need
        more than is left."""
        taken: list[Op] = []
        while self._samples and room > 0:
            client, queue = next(iter(self._samples.items()))
            del self._samples[client]
            op = queue.pop(next(iter(queue)))
            taken.append(op)
            assert isinstance(op.payload, Sample)
            room -= op.payload.job.num_samples
            if queue:
                self._samples[client] = queue  # to the end of the line
        self.waiting_samples -= len(taken)
        return taken

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


def _client(future_id: str) -> str:
    return future_id.partition(":")[0]
