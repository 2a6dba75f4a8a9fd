"""Choosing the next token of each row, with randomness that depends on that row alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jaxtyping import Float, Int

CHUNK_ELEMENTS = 1 << 24  # logits handled at once, so that many rows of a large vocabulary fit

BLOCK = 64  # tokens of the vocabulary that share one entry of the coarse running sum
BELOW_ONE = 1 - 2.0**-52

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: every output bit depends on every input bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def row_key(seed: int, sample: int) -> int:
    """The stream of one sample of a request; distinct for each sample."""
    with np.errstate(over="ignore"):
        start = _mix(np.array([seed % 2**64], dtype=np.uint64))
        return int(_mix(start + np.uint64(sample + 1) * _GOLDEN)[0])


def uniforms(keys: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Number `counter` of each stream, in [0, 1 - 2**-52]: of key and counter, with no hidden state."""
    bits = _mix(keys + (counters + np.uint64(1)) * _GOLDEN)  # arrays wrap around, as wanted
    return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52


@dataclass(frozen=True)
class Choices:
    """Sampling settings of some rows, as tensors; None where no row departs from the default."""

    temperature: Float[torch.Tensor, " rows"] | None  # None: all are 1
    greedy: torch.Tensor | None  # bool, rows with temperature 0
    top_k: Int[torch.Tensor, " rows"] | None
    top_p: Float[torch.Tensor, " rows"] | None

    @classmethod
    def of(
        cls, settings: Sequence[tuple[float, int, float]], vocab: int, device: torch.device
    ) -> Choices:
        """From (temperature, top_k, top_p) of each row."""
        temperature = torch.tensor([s[0] for s in settings], device=device)
        greedy = temperature == 0
        top_k = torch.tensor([vocab if s[1] < 1 else min(s[1], vocab) for s in settings])
        top_p = torch.tensor([s[2] for s in settings])
        return cls(
            None if bool((temperature == 1).all()) else temperature.masked_fill(greedy, 1.0),
            greedy if bool(greedy.any()) else None,
            None if bool((top_k == vocab).all()) else top_k.to(device),
            None if bool((top_p == 1).all()) else top_p.to(device),
        )

    def part(self, rows: slice) -> Choices:
        fields = (self.temperature, self.greedy, self.top_k, self.top_p)
        return Choices(*(None if x is None else x[rows] for x in fields))


def choose(
    logits: Float[torch.Tensor, "rows vocab"], choices: Choices, random: NDArray[np.float64]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their log-probabilities under softmax(logits / temperature).

    top_k and top_p narrow what may be chosen, not the reported log-probability. Greedy rows report
    the log-probability at temperature 1. A row whose logits are not finite gets some token with a
    log-probability of NaN; other rows are not touched by it.
    """
    count, vocab = logits.shape
    rows = max(1, CHUNK_ELEMENTS // vocab)
    uniform = torch.from_numpy(random).to(logits.device)
    if count <= rows:
        return _choose(logits, choices, uniform)
    parts = [slice(start, start + rows) for start in range(0, count, rows)]
    chosen = [_choose(logits[part], choices.part(part), uniform[part]) for part in parts]
    return torch.cat([token for token, _ in chosen]), torch.cat([lp for _, lp in chosen])


def _choose(
    logits: torch.Tensor, choices: Choices, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if choices.temperature is not None:
        logits = logits / choices.temperature[:, None]
    highest = logits.amax(-1, keepdim=True)
    weights = Weights.of((logits - highest).exp_())
    normaliser = highest + weights.running[:, -1:].log().to(logits.dtype)
    if choices.top_k is not None or choices.top_p is not None:
        weights = Weights.of(_narrow(weights.blocks.flatten(1), choices))
    picked = weights.pick(uniform)
    if choices.greedy is not None:
        picked = torch.where(choices.greedy[:, None], logits.argmax(-1, keepdim=True), picked)
    return picked[:, 0], (logits.gather(1, picked) - normaliser)[:, 0]


def top_logprobs(
    logits: Float[torch.Tensor, "rows vocab"], temperature: Float[torch.Tensor, " rows"], k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k likeliest tokens of each row and their log-probabilities, as `choose` would report them."""
    rows = max(1, CHUNK_ELEMENTS // logits.shape[1])
    parts = zip(logits.split(rows), temperature.split(rows), strict=True)
    found = [_top(part, scale, min(k, logits.shape[1])) for part, scale in parts]
    return torch.cat([tokens for tokens, _ in found]), torch.cat([lps for _, lps in found])


def _top(
    logits: torch.Tensor, temperature: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits / temperature.masked_fill(temperature == 0, 1.0)[:, None]
    highest = logits.amax(-1, keepdim=True)
    total = Weights.of((logits - highest).exp_()).running[:, -1:]
    best, tokens = logits.topk(k, dim=-1)
    return tokens, best - (highest + total.log().to(logits.dtype))


def draw(
    logits: Float[torch.Tensor, "rows vocab"], temperature: float, random: NDArray[np.float64]
) -> torch.Tensor:
    """Independent tokens for each row of softmax(logits / temperature), one a column of `random`."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True).expand(-1, random.shape[1])
    scaled = logits / temperature
    weights = Weights.of((scaled - scaled.amax(-1, keepdim=True)).exp_())
    uniform = torch.from_numpy(random).to(logits.device)
    return torch.cat([weights.pick(column) for column in uniform.unbind(1)], dim=1)


@dataclass(frozen=True)
class Weights:
    """Unnormalised probabilities of each row in blocks, with the running sum over the blocks.

    Running sums are float64, since in float32 they would lose the rare tokens; they are taken over
    blocks and then inside one block, which is far cheaper than over the vocabulary.
    """

    vocab: int
    blocks: Float[torch.Tensor, "rows blocks BLOCK"]
    sums: Float[torch.Tensor, "rows blocks"]
    running: Float[torch.Tensor, "rows blocks"]

    @classmethod
    def of(cls, weights: Float[torch.Tensor, "rows vocab"]) -> Weights:
        rows, vocab = weights.shape
        if vocab % BLOCK:
            weights = torch.nn.functional.pad(weights, (0, -vocab % BLOCK))
        blocks = weights.view(rows, -1, BLOCK)
        sums = blocks.sum(-1)
        return cls(vocab, blocks, sums, sums.cumsum(-1, dtype=torch.float64))

    def pick(self, uniform: Float[torch.Tensor, " rows"]) -> torch.Tensor:
        """The token at `uniform` of each row's total: a block by its sum, then a token inside it."""
        target = uniform[:, None] * self.running[:, -1:]
        block = torch.searchsorted(self.running, target, right=True)
        block.clamp_(max=self.running.shape[1] - 1)  # beyond the end only where sums are NaN
        before = self.running.gather(1, block) - self.sums.gather(1, block)
        inside = self.blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0]
        running = inside.cumsum(-1, dtype=torch.float64)
        # A block's float32 sum may differ from the float64 one by a rounding: stay inside, so that a
        # token of no weight is never picked.
        inner = torch.minimum(target - before, running[:, -1:] * BELOW_ONE).clamp_(min=0)
        token = torch.searchsorted(running, inner, right=True).clamp_(max=BLOCK - 1)
        return token.add_(block, alpha=BLOCK).clamp_(max=self.vocab - 1)


def _narrow(weights: torch.Tensor, choices: Choices) -> torch.Tensor:
    """Keep each row's top_k most likely tokens, and of those the fewest that reach top_p."""
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if choices.top_k is not None:
        ranks = torch.arange(ordered.shape[1], device=ordered.device)
        keep &= ranks < choices.top_k[:, None]
    if choices.top_p is not None:
        kept = ordered * keep
        share = kept / kept.sum(-1, keepdim=True)
        keep &= share.cumsum(-1) - share < choices.top_p[:, None]
    return torch.zeros_like(weights).scatter_(1, order, ordered * keep)
