"""Sampling with continuous batching: requests join the running batch at the next step."""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tinsmith.errors import RequestError, TinsmithError
from tinsmith.service.engine.backend import (
    Finished,
    Partial,
    Sampled,
    SampleJob,
    SampleResult,
    ScoredTokens,
)
from tinsmith.service.engine.cached_attention import (
    PromptAttention,
    TokenAttention,
    slots_of,
)
from tinsmith.service.engine.choose import Choices, choose, row_key, top_logprobs, uniforms
from tinsmith.service.engine.decoder import RowAdapters, logits_of, run_decoder
from tinsmith.service.engine.kv_cache import BLOCK, KVCache
from tinsmith.service.engine.lora import FrozenAdapter
from tinsmith.service.engine.model import BaseModel
from tinsmith.service.engine.prompt_scores import PromptScores, score_prompt
from tinsmith.service.engine.sampling_rows import Prompt, Request, Row, lanes_of, slices_of

PROMPT_TOKENS_A_STEP = 4096  # new prompt tokens taken in between two decode steps, about
MAX_ROWS = 1024
NOT_FINITE = (
    "the model's logits are not finite, so nothing can be sampled from these weights; load an earlier "
    "checkpoint and lower the learning rate."
)
STOP_TEXT_TOKENS = 64  # how far back a stop string is looked for, at least


@dataclass
class _Batch:
    """The running rows as arrays; made anew when a row joins or leaves."""

    rows: list[Row]  # as run, grouped by adapter; a lone row stands twice (see lanes_of)
    keep: list[int]  # positions in `rows` that count, in the order of the sampler's running rows
    adapters: RowAdapters
    choices: Choices
    attention: TokenAttention


class Sampler:
    """All sampling from one base model and its adapters."""

    def __init__(
        self, model: BaseModel, cache_tokens: int, decode_text: Callable[[list[int]], str]
    ) -> None:
        self.model = model
        self.cache = KVCache(model, cache_tokens)
        self.decode_text = decode_text
        self.waiting: deque[Request] = deque()
        self.running: list[Row] = []
        self.batch: _Batch | None = None
        self.taken_in = 0  # prompt tokens since the last decode step

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def backlog(self) -> int:
        """Samples that have not begun."""
        return sum(len(request.unstarted) for request in self.waiting)

    @property
    def cache_room(self) -> int:
        """Tokens of the longest sequence that fits the cache."""
        return (self.cache.pool.size - 1) * BLOCK

    def add(self, job_id: str, job: SampleJob, adapter: FrozenAdapter | None) -> None:
        room = self.model.config.max_context - len(job.prompt)
        if (
            job.max_tokens is None
        ):  # as far as it goes, which in little memory is not the whole context
            room = max(1, min(room, self.cache_room - len(job.prompt)))
        limit = min(job.max_tokens or room, room)
        eos = self.model.info.eos_ids
        stop: tuple[str | int, ...] = eos if job.stop is None else (*job.stop, *eos)
        if job.stop == ():
            stop = ()
        request = Request(
            id=job_id,
            job=job,
            adapter=adapter,
            seed=secrets.randbits(63) if job.seed is None else job.seed,
            limit=limit,
            stop_ids=frozenset(s for s in stop if isinstance(s, int)),
            stop_texts=tuple(s for s in stop if isinstance(s, str)),
            unstarted=deque(range(job.num_samples)),
            sequences=[None] * job.num_samples,
        )
        if request.stop_texts:
            self.decode_text([])  # a missing tokenizer is this request's fault, not its neighbours'
        if self._blocks_of(request) >= self.cache.pool.size:
            raise RequestError(
                f"prompt and max_tokens need {len(job.prompt) + limit} tokens of cache, but there is room "
                f"for {self.cache_room}; lower max_tokens."
            )
        self.waiting.append(request)

    def cancel(self, job_id: str) -> None:
        for request in [*self.waiting, *(row.request for row in self.running)]:
            if request.id == job_id:
                request.cancelled = True
        self.waiting = deque(r for r in self.waiting if not r.cancelled)
        dropped = [row for row in self.running if row.request.cancelled]
        if dropped:
            self._release(dropped)
            self.running = [row for row in self.running if not row.request.cancelled]
            self.batch = None

    @torch.inference_mode()
    def step(self) -> list[Finished | Partial]:
        """Take in what fits of the waiting prompts; when none came, one token for every running row.

        Prompts go first, up to a budget of tokens, since rows that start together decode together.
        """
        prompts = self._admit()
        finished = self._start(prompts) if prompts else []
        if not prompts or self.taken_in >= PROMPT_TOKENS_A_STEP:
            self.taken_in = 0
            finished += self._decode() if self.running else []
        for done in finished:
            if isinstance(done, Finished) and isinstance(done.result, TinsmithError):
                self.cancel(done.job_id)  # its other samples end with it
        return finished

    # ── prompts ──────────────────────────────────────────────────────────────────────────────

    def _blocks_of(self, request: Request) -> int:
        return -(-(len(request.job.prompt) + request.limit) // BLOCK)

    def _admit(self) -> list[Prompt]:
        """Requests, oldest first, as far as rows, cache blocks and this step's tokens go."""
        pool = self.cache.pool
        prompts: dict[object, Prompt] = {}
        tokens = started = 0
        while self.waiting and tokens < PROMPT_TOKENS_A_STEP:
            request = self.waiting[0]
            prompt = request.job.prompt
            scored = request.job.scores_prompt  # needs all hidden states, so it reads no cache
            same: object = request.id if scored else (request.root, prompt)
            known = prompts.get(same)
            found = [] if scored or known else pool.find(request.root, prompt[:-1])
            full = len(prompt) // BLOCK
            own = self._blocks_of(request) - full
            spare = pool.available
            if known is None:  # found blocks that lie idle stop being available once shared
                spare -= full - len(found) + sum(block in pool.kept for block in found)
            rows = MAX_ROWS - len(self.running) - started
            count = min(len(request.unstarted), spare // own, rows)
            if count < 1:
                break
            if known is None:
                known = prompts[same] = Prompt(request, found)
                tokens += len(prompt) - len(found) * BLOCK
            request.cached_tokens = len(known.found) * BLOCK
            for _ in range(count):
                self._add_row(known, request, full, own)
            started += count
            if not request.unstarted:
                self.waiting.popleft()
        return list(prompts.values())

    def _add_row(self, prompt: Prompt, request: Request, full: int, own: int) -> None:
        pool = self.cache.pool
        if prompt.rows:
            shared = prompt.rows[0].blocks[:full]
            pool.share(shared)
        else:
            pool.share(prompt.found)
            shared = prompt.found + pool.take(full - len(prompt.found))
        sample = request.unstarted.popleft()
        key = row_key(request.seed, sample)
        prompt.rows.append(Row(request, sample, key, shared + pool.take(own)))

    def _start(self, prompts: list[Prompt]) -> list[Finished | Partial]:
        """Compute new prompts and the first token of each of their rows, which then run."""
        # Neighbours share an adapter, then a length, so products and attention run over many at once.
        prompts.sort(key=lambda p: (id(p.request.adapter), len(p.found), len(p.request.job.prompt)))
        self.taken_in += sum(prompt.part.new for prompt in prompts)
        rows = [row for prompt in prompts for row in prompt.rows]
        try:
            logits = self._compute_prompts(prompts)
        except BaseException:
            for row in rows:
                self.cache.pool.release(row.blocks)
            raise
        alive, finished = self._pick(rows, logits, self._choices(rows))
        self.running += alive
        self.batch = None
        return finished

    def _compute_prompts(self, prompts: list[Prompt]) -> torch.Tensor:
        """Fill the cache with prompts; logits for the first token of each of their rows, in order."""
        adapters = [p.request.adapter for p in prompts]
        lanes, keep = lanes_of(adapters, [p.part.new for p in prompts])
        laid = [prompts[index] for index in lanes]
        parts = [p.part for p in laid]
        widths = [part.new for part in parts]
        device = self.model.device
        tokens = [p.request.job.prompt[part.cached :] for p, part in zip(laid, parts, strict=True)]
        positions = np.concatenate([np.arange(part.cached, part.length) for part in parts])
        hidden = run_decoder(
            self.model,
            torch.tensor([token for some in tokens for token in some], device=device),
            torch.from_numpy(positions).to(device),
            PromptAttention(self.cache, parts, device),
            slices_of([p.request.adapter for p in laid], widths),
        )
        ends = np.cumsum(widths)[keep]
        for prompt, end in zip(prompts, ends, strict=True):
            request = prompt.request
            if request.job.scores_prompt and request.scores is None:
                pair = request.adapter.pairs.get("head") if request.adapter else None
                own = hidden[end - prompt.part.new : end]
                request.scores = score_prompt(request.job, request.seed, own, self.model.head, pair)
            self.cache.pool.register(request.root, request.job.prompt, prompt.rows[0].blocks)
        self._copy_tails(prompts)
        return self._last_logits(prompts, hidden, ends)

    def _last_logits(
        self, prompts: Sequence[Prompt], hidden: torch.Tensor, ends: np.ndarray
    ) -> torch.Tensor:
        """Logits after each prompt, repeated for each row that starts from it."""
        adapters = [p.request.adapter for p in prompts]
        lanes, keep = lanes_of(adapters)
        last = torch.from_numpy(ends[lanes] - 1).to(hidden.device)
        slices = slices_of([adapters[lane] for lane in lanes], [1] * len(lanes))
        logits = logits_of(self.model, hidden[last], slices)
        source = [lane for p, lane in zip(prompts, keep, strict=True) for _ in p.rows]
        return logits[torch.tensor(source, device=hidden.device)]

    def _copy_tails(self, prompts: Sequence[Prompt]) -> None:
        sources: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        for prompt in prompts:
            length = len(prompt.request.job.prompt)
            first = length - length % BLOCK
            source, *others = [slots_of(row.blocks, first, length) for row in prompt.rows]
            sources += [source] * len(others)
            targets += others
        if sources and sum(map(len, sources)):
            device = self.model.device
            source = torch.from_numpy(np.concatenate(sources)).to(device)
            self.cache.copy_slots(source, torch.from_numpy(np.concatenate(targets)).to(device))

    # ── tokens ───────────────────────────────────────────────────────────────────────────────

    def _decode(self) -> list[Finished | Partial]:
        if self.batch is None:
            self.batch = self._make_batch()
        batch = self.batch
        lengths = np.array([row.cached for row in batch.rows])
        slots = np.array(
            [
                r.blocks[n // BLOCK] * BLOCK + n % BLOCK
                for r, n in zip(batch.rows, lengths, strict=True)
            ]
        )
        if not batch.attention.begin(slots, lengths):
            batch.attention.set_rows([row.blocks for row in batch.rows], lengths)
            batch.attention.begin(slots, lengths)
        device = self.model.device
        tokens = torch.from_numpy(np.array([row.tokens[-1] for row in batch.rows])).to(device)
        positions = torch.from_numpy(lengths).to(device)
        hidden = run_decoder(self.model, tokens, positions, batch.attention, batch.adapters)
        logits = logits_of(self.model, hidden, batch.adapters)
        if len(batch.keep) < len(batch.rows):
            logits = logits[torch.tensor(batch.keep, device=device)]
        alive, finished = self._pick(self.running, logits, batch.choices)
        if len(alive) < len(self.running):
            self.running = alive
            self.batch = None
        return finished

    def _make_batch(self) -> _Batch:
        self.running.sort(key=lambda row: id(row.request.adapter))
        lanes, keep = lanes_of([row.request.adapter for row in self.running])
        rows = [self.running[index] for index in lanes]
        attention = TokenAttention(self.cache, self.model.device)
        attention.set_rows([row.blocks for row in rows], np.array([row.cached for row in rows]))
        adapters = slices_of([row.request.adapter for row in rows], [1] * len(rows))
        return _Batch(rows, keep, adapters, self._choices(self.running), attention)

    def _choices(self, rows: Sequence[Row]) -> Choices:
        jobs = [row.request.job for row in rows]
        settings = [(job.temperature, job.top_k, job.top_p) for job in jobs]
        return Choices.of(settings, self.model.config.vocab_size, self.model.device)

    def _pick(
        self, rows: Sequence[Row], logits: torch.Tensor, choices: Choices
    ) -> tuple[list[Row], list[Finished | Partial]]:
        """Give each row its next token; return the rows that go on and what there is to tell."""
        keys = np.array([row.key for row in rows], dtype=np.uint64)
        counters = np.array([len(row.tokens) for row in rows], dtype=np.uint64)
        tokens, logprobs = choose(logits, choices, uniforms(keys, counters))
        alive: list[Row] = []
        ended: list[Row] = []
        finished: list[Finished | Partial] = []
        self._add_topk(rows, logits)
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            request = row.request
            if math.isnan(logprob):
                ended.append(row)
                if not request.cancelled:
                    request.cancelled = True
                    finished.append(Finished(request.id, RequestError(NOT_FINITE)))
                continue
            if request.job.stream:
                newest = row.topk[-1] if row.topk else None
                finished.append(Partial(request.id, row.sample, [token], [logprob], newest))
            stopped = token in request.stop_ids or (request.stop_texts and self._hits_text(row))
            if not stopped and len(row.tokens) < request.limit:
                alive.append(row)
                continue
            ended.append(row)
            reason = "stop" if stopped else "length"
            topk = _joined(row.topk) if row.topk else None
            request.sequences[row.sample] = Sampled(row.tokens, row.logprobs, reason, topk)
            if None not in request.sequences:
                finished.append(Finished(request.id, _result(request)))
        self._release(ended)
        return alive, finished

    def _add_topk(self, rows: Sequence[Row], logits: torch.Tensor) -> None:
        """The likeliest tokens of this position, for the rows that ask for them."""
        asking = [i for i, row in enumerate(rows) if row.request.job.topk_sample_logprobs]
        if not asking:
            return
        jobs = [rows[index].request.job for index in asking]
        temperature = torch.tensor([job.temperature for job in jobs], device=logits.device)
        most = max(job.topk_sample_logprobs for job in jobs)
        where = torch.tensor(asking, device=logits.device)
        tokens, logprobs = (x.cpu().numpy() for x in top_logprobs(logits[where], temperature, most))
        for lane, (index, job) in enumerate(zip(asking, jobs, strict=True)):
            part = np.s_[lane : lane + 1, : job.topk_sample_logprobs]
            rows[index].topk.append(ScoredTokens(tokens[part], logprobs[part]))

    def _hits_text(self, row: Row) -> bool:
        """Whether the newest token completed a stop string."""
        texts = row.request.stop_texts
        window = max(STOP_TEXT_TOKENS, *(len(text.encode()) + 1 for text in texts))
        text = self.decode_text(row.tokens[-window:])
        return any(stop in text for stop in texts)

    def _release(self, rows: Sequence[Row]) -> None:
        """Give a row's blocks back; full ones stay findable for a prompt that goes on from here."""
        for row in rows:
            tokens = (*row.request.job.prompt, *row.tokens[:-1])
            self.cache.pool.register(row.request.root, tokens, row.blocks)
            self.cache.pool.release(row.blocks)


def _joined(parts: Sequence[ScoredTokens]) -> ScoredTokens:
    tokens = np.concatenate([part.tokens for part in parts])
    return ScoredTokens(tokens, np.concatenate([part.logprobs for part in parts]))


def _result(request: Request) -> SampleResult:
    scores = request.scores or PromptScores()
    return SampleResult(
        [sequence for sequence in request.sequences if sequence is not None],
        scores.logprobs,
        request.cached_tokens,
        scores.topk,
        scores.targets,
        scores.alt_tokens,
    )
