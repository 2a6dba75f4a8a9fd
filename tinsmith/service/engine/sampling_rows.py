"""What is being sampled (requests, rows, prompts) and how rows are laid out for a product."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tinsmith.service.engine.backend import Sampled, SampleJob, ScoredTokens
from tinsmith.service.engine.cached_attention import PromptPart
from tinsmith.service.engine.decoder import RowAdapters
from tinsmith.service.engine.kv_cache import BLOCK
from tinsmith.service.engine.lora import FrozenAdapter
from tinsmith.service.engine.prompt_scores import PromptScores


@dataclass
class Request:
    """A job in flight; its samples start when there is room and may start apart."""

    id: str
    job: SampleJob
    adapter: FrozenAdapter | None
    seed: int
    limit: int  # tokens each sample may have
    stop_ids: frozenset[int]
    stop_texts: tuple[str, ...]
    unstarted: deque[int]
    sequences: list[Sampled | None]
    scores: PromptScores | None = None
    cached_tokens: int = 0
    cancelled: bool = False

    @property
    def root(self) -> str | None:
        """What cached blocks depend on beside the tokens: the adapter's values, None for the base."""
        return None if self.adapter is None else self.adapter.id


@dataclass
class Row:
    """One sample being decoded."""

    request: Request
    sample: int
    key: int
    blocks: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    topk: list[ScoredTokens] = field(default_factory=list)  # one row each, if asked for

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are in the cache: all but the newest."""
        return len(self.request.job.prompt) + len(self.tokens) - 1


@dataclass
class Prompt:
    """A prompt to compute once, for all rows (of one or more requests) that start from it.

    Its full blocks are shared by the rows; its tail is computed into the first row's own block and
    copied to the others'.
    """

    request: Request
    found: list[int]
    rows: list[Row] = field(default_factory=list)

    @property
    def part(self) -> PromptPart:
        length = len(self.request.job.prompt)
        return PromptPart(len(self.found) * BLOCK, length, self.rows[0].blocks)


def lanes_of(
    adapters: Sequence[object], widths: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Indices of members to compute, neighbours of one adapter together, and which of them count.

    A product with a single row takes another path through the BLAS and rounds differently, so an
    adapter's only row is computed twice: a row's numbers then never depend on its company.
    """
    lanes: list[int] = []
    keep: list[int] = []
    for _, members in groupby(range(len(adapters)), key=lambda index: id(adapters[index])):
        group = list(members)
        keep += range(len(lanes), len(lanes) + len(group))
        rows = len(group) if widths is None else sum(widths[index] for index in group)
        lanes += group * 2 if rows == 1 else group
    return lanes, keep


def slices_of(adapters: Sequence[FrozenAdapter | None], widths: Sequence[int]) -> RowAdapters:
    """Neighbouring members with the same adapter as one slice of rows."""
    out: list[tuple[int, int, dict]] = []
    start = 0
    for adapter, width in zip(adapters, widths, strict=True):
        if adapter is not None:
            if out and out[-1][1] == start and out[-1][2] is adapter.pairs:
                out[-1] = (out[-1][0], start + width, adapter.pairs)
            else:
                out.append((start, start + width, adapter.pairs))
        start += width
    return out
