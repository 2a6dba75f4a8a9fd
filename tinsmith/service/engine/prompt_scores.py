"""What a sampling request asks of its prompt's own positions: log-probabilities, top-k, targets, draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from tinsmith.service.engine.backend import SampleJob, ScoredTokens
from tinsmith.service.engine.choose import draw, row_key, uniforms
from tinsmith.service.engine.lora import LoraPair
from tinsmith.service.engine.model import LinearWeights
from tinsmith.service.engine.vocab_loss import logits_in_chunks

if TYPE_CHECKING:
    from jaxtyping import Float

FIRST_STREAM = 1 << 32  # random streams below this belong to the samples


@dataclass(frozen=True, eq=False)
class PromptScores:
    """Row i is of prompt position i + 1, at temperature 1; None where it was not asked for."""

    logprobs: list[float | None] | None = None  # of all positions; the first is None
    topk: ScoredTokens | None = None
    targets: NDArray[np.float32] | None = None
    alt_tokens: ScoredTokens | None = None


def score_prompt(
    job: SampleJob,
    seed: int,
    hidden: Float[torch.Tensor, "tokens hidden"],
    head: LinearWeights,
    pair: LoraPair | None,
) -> PromptScores:
    """From the hidden states of the whole prompt, of which the last predicts no prompt token."""
    own: list[torch.Tensor] = []
    best: list[tuple[torch.Tensor, torch.Tensor]] = []
    named: list[torch.Tensor] = []
    drawn: list[tuple[torch.Tensor, torch.Tensor]] = []
    device = hidden.device
    prompt = torch.tensor(job.prompt[1:], device=device)
    wanted = None if job.target_prompt is None else torch.tensor(job.target_prompt, device=device)
    for part, logits in logits_in_chunks(hidden[:-1], head, pair):
        normaliser = torch.logsumexp(logits, dim=1, keepdim=True)
        if job.prompt_logprobs:
            own.append((logits.gather(1, prompt[part, None]) - normaliser)[:, 0])
        if job.topk_prompt_logprobs:
            values, tokens = logits.topk(min(job.topk_prompt_logprobs, logits.shape[1]), dim=1)
            best.append((tokens, values - normaliser))
        if wanted is not None:
            cells = wanted[part]
            scores = logits.gather(1, cells.clamp(min=0)) - normaliser
            named.append(scores.masked_fill(cells < 0, 0.0))
        if job.alt_tokens:
            random = _alt_random(seed, part.start, len(logits), job.alt_tokens)
            tokens = draw(logits, job.temperature, random)
            drawn.append((tokens, logits.gather(1, tokens) - normaliser))
    columns = 0 if wanted is None else wanted.shape[1]
    return PromptScores(
        logprobs=[None, *_joined(own, ()).tolist()] if job.prompt_logprobs else None,
        topk=ScoredTokens(*_pair(best, job.topk_prompt_logprobs))
        if job.topk_prompt_logprobs
        else None,
        targets=None if wanted is None else _joined(named, (columns,)),
        alt_tokens=ScoredTokens(*_pair(drawn, job.alt_tokens)) if job.alt_tokens else None,
    )


def _alt_random(seed: int, start: int, rows: int, k: int) -> NDArray[np.float64]:
    """[rows, k]: one stream for each column, counted by prompt position."""
    streams = [row_key(seed, FIRST_STREAM + column) for column in range(k)]
    keys = np.tile(np.array(streams, dtype=np.uint64), rows)
    positions = np.repeat(np.arange(start, start + rows, dtype=np.uint64), k)
    return uniforms(keys, positions).reshape(rows, k)


def _joined(parts: list[torch.Tensor], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A prompt of one token has no parts: then no rows of `shape`."""
    if not parts:
        return np.zeros((0, *shape), dtype=np.float32)
    return torch.cat(parts).float().cpu().numpy()


def _pair(
    parts: list[tuple[torch.Tensor, torch.Tensor]], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    tokens = [part.cpu().numpy() for part, _ in parts] or [np.zeros((0, k), dtype=np.int64)]
    return np.concatenate(tokens), _joined([lps for _, lps in parts], (k,))
