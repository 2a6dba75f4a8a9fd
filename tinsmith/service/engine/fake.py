"""A deterministic engine without torch: a trainable table of next-token scores, for tests."""

from __future__ import annotations

import copy
import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinsmith.errors import ModelError, RequestError, TinsmithError
from tinsmith.service.engine.backend import (
    AdamSpec,
    Finished,
    LoraSpec,
    LossSpec,
    Metrics,
    ModelId,
    ModelInfo,
    Partial,
    PassResult,
    Sampled,
    SampleJob,
    SampleResult,
    ScoredTokens,
    TrainItem,
    WeightsId,
    Write,
)
from tinsmith.service.engine.checks import settings_of
from tinsmith.settings import EMBEDDED_MODEL

ITEMS_PER_MICRO_BATCH = 4


@dataclass
class _Model:
    """The table is the model: row t scores what follows token t."""

    spec: LoraSpec
    table: NDArray[np.float64]
    gradient: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    steps: int = 0


@dataclass
class _Job:
    job: SampleJob
    table: NDArray[np.float64]
    limit: int
    generators: list[np.random.Generator]
    sequences: list[Sampled] = field(default_factory=list[Sampled])
    running: list[int] = field(default_factory=list[int])

    def topk(self, sample: int, *, newest: bool = False) -> ScoredTokens | None:
        """Of the distributions that a sample's tokens (or the newest one) were drawn from."""
        if not self.job.topk_sample_logprobs:
            return None
        before = [self.job.prompt[-1], *self.sequences[sample].tokens[:-1]]
        scores = self.table[before[-1:] if newest else before]
        rows = _log_softmax(scores / (self.job.temperature or 1.0))
        return _likeliest(rows, self.job.topk_sample_logprobs)


class FakeBackend:
    """Implements `Backend` with token ids as bytes; the same calls always give the same answers."""

    def __init__(
        self,
        *,
        names: Sequence[str] = (EMBEDDED_MODEL,),
        directory: Path = Path("/nonexistent/tokenizer"),
        vocab_size: int = 256,
        max_context: int = 256,
    ) -> None:
        self._names = tuple(names)
        self._directory = directory
        self._vocab_size = vocab_size
        self._max_context = max_context
        self._models: dict[ModelId, _Model] = {}
        self._weights: dict[WeightsId, NDArray[np.float64]] = {}
        self._jobs: dict[str, _Job] = {}
        self._unseeded = np.random.SeedSequence(0)
        size = (vocab_size, vocab_size)
        self._base = np.random.default_rng(7).normal(0.0, 0.5, size)

    def describe(self, base_model: str) -> ModelInfo:
        if base_model not in self._names:
            raise ModelError(
                f"there is no base model {base_model!r}; there is {', '.join(self._names)}."
            )
        return ModelInfo(
            name=base_model,
            directory=self._directory,
            architecture="table",
            vocab_size=self._vocab_size,
            max_context=self._max_context,
            max_lora_rank=64,
            eos_ids=(0,),
        )

    # training

    def create(self, model: ModelId, spec: LoraSpec) -> None:
        self.describe(spec.base_model)
        zeros = np.zeros_like(self._base)
        self._models[model] = _Model(spec, zeros, zeros.copy(), zeros.copy(), zeros.copy())

    def drop(self, model: ModelId) -> None:
        self._models.pop(model, None)

    def run_pass(
        self, model: ModelId, items: Sequence[TrainItem], loss: LossSpec, *, backward: bool
    ) -> Iterator[float | PassResult]:
        state = self._model(model)
        outputs: list[dict[str, NDArray[np.float32]]] = []
        total = 0.0
        for index, item in enumerate(items):
            if index and index % ITEMS_PER_MICRO_BATCH == 0:
                yield index / len(items)
            scores = _log_softmax(self._base[item.tokens] + state.table[item.tokens])
            target = item.inputs["target_tokens"].astype(np.int64)
            cells = (np.arange(len(target)).reshape(-1, *[1] * (target.ndim - 1)), target)
            logprobs = scores[cells]
            value, slope = _loss(loss, item.inputs, logprobs)
            total += float(value)
            if backward:
                rows = -np.exp(scores) * slope.reshape(len(target), -1).sum(1, keepdims=True)
                np.add.at(rows, cells, slope)
                np.add.at(state.gradient, item.tokens, rows)
            outputs.append({"logprobs": logprobs.astype(np.float32)})
        yield PassResult(outputs, {"loss:sum": total})

    def optim_step(self, model: ModelId, adam: AdamSpec) -> Metrics:
        state = self._model(model)
        norm = float(np.linalg.norm(state.gradient))
        if adam.grad_clip_norm > 0 and norm > adam.grad_clip_norm:
            state.gradient *= adam.grad_clip_norm / norm
        state.steps += 1
        state.first += (1 - adam.beta1) * (state.gradient - state.first)
        state.second += (1 - adam.beta2) * (state.gradient**2 - state.second)
        first = state.first / (1 - adam.beta1**state.steps)
        second = state.second / (1 - adam.beta2**state.steps)
        state.table *= 1 - adam.learning_rate * adam.weight_decay
        state.table -= adam.learning_rate * first / (np.sqrt(second) + adam.eps)
        state.gradient[:] = 0.0
        return {"unclipped_grad_l2:mean": norm}

    def freeze(self, model: ModelId, weights: WeightsId) -> Write:
        state = self._model(model)
        self._weights[weights] = table = state.table.copy()
        return partial(self._write, replace(state, table=table), optimizer=False)

    def capture(self, model: ModelId) -> Write:
        return partial(_write_state, copy.deepcopy(self._model(model)))

    def check(self, source: Path) -> None:
        _read_state(source)

    def restore(self, model: ModelId, spec: LoraSpec, source: Path) -> None:
        self._models[model] = _read_state(source)

    def adapter_bytes(self, spec: LoraSpec) -> int:
        return 4 * self._base.nbytes

    def adapter_budget(self) -> int:
        return 1 << 30

    def memory_report(self) -> dict[str, int]:
        return {"weights": self._base.nbytes}

    def save(self, model: ModelId, to: Path, *, optimizer: bool) -> None:
        self._write(self._model(model), to, optimizer=optimizer)

    def _write(self, state: _Model, to: Path, *, optimizer: bool) -> None:
        arrays = {"table": state.table}
        if optimizer:
            arrays |= {"first": state.first, "second": state.second}
        incoming = to.with_name(f"{to.name}.part")
        incoming.mkdir(parents=True)
        try:
            np.savez(incoming / "adapter.npz", allow_pickle=False, **arrays)
            facts = {"rank": state.spec.rank, "steps": state.steps, "optimizer": optimizer}
            (incoming / "adapter.json").write_text(json.dumps(facts))
            incoming.rename(to)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def load(self, model: ModelId, source: Path, *, optimizer: bool) -> None:
        state = self._model(model)
        arrays, facts = _read(source)
        if optimizer and not facts["optimizer"]:
            raise RequestError(f"{source} holds no optimizer state; load it without.")
        state.table = arrays["table"].copy()
        state.gradient[:] = 0.0
        state.steps = facts["steps"] if optimizer else 0
        for name in ("first", "second"):
            setattr(state, name, arrays[name].copy() if optimizer else np.zeros_like(state.table))

    # sampling

    def load_weights(self, weights: WeightsId, base_model: str, source: Path) -> None:
        self.describe(base_model)
        self._weights[weights] = _read(source)[0]["table"].copy()

    def drop_weights(self, weights: WeightsId) -> None:
        self._weights.pop(weights, None)

    def weights_bytes(self, weights: WeightsId) -> int:
        return self._weights[weights].nbytes

    def add(self, job_id: str, job: SampleJob) -> None:
        self.describe(job.base_model)
        table = self._base
        if job.weights is not None:
            if job.weights not in self._weights:
                raise RequestError(f"there are no weights {job.weights}.")
            table = table + self._weights[job.weights]
        room = self._max_context - len(job.prompt)
        limit = room if job.max_tokens is None else job.max_tokens
        seed = job.seed if job.seed is not None else self._unseeded.spawn(1)[0].generate_state(1)[0]
        generators = [
            np.random.default_rng([int(seed) % 2**63, sample]) for sample in range(job.num_samples)
        ]
        sequences = [Sampled([], [], "length") for _ in generators]
        self._jobs[job_id] = _Job(
            job, table, limit, generators, sequences, list(range(job.num_samples))
        )

    def step(self) -> list[Finished | Partial]:
        told: list[Finished | Partial] = []
        for job_id, running in list(self._jobs.items()):
            decoding = list(running.running)
            result: SampleResult | TinsmithError | None = self._advance(running)
            if running.job.stream:
                for sample in decoding:
                    said = running.sequences[sample]
                    topk = running.topk(sample, newest=True)
                    told.append(Partial(job_id, sample, said.tokens[-1:], said.logprobs[-1:], topk))
            if result is not None:
                del self._jobs[job_id]
                told.append(Finished(job_id, result))
        return told

    def cancel(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)

    @property
    def sampling(self) -> bool:
        return bool(self._jobs)

    @property
    def backlog(self) -> int:
        return 0

    def _advance(self, running: _Job) -> SampleResult | None:
        job = running.job
        for sample in list(running.running):
            sequence = running.sequences[sample]
            last = sequence.tokens[-1] if sequence.tokens else job.prompt[-1]
            scores = running.table[last]
            if job.temperature > 0:
                logprobs = _log_softmax(scores / job.temperature)
                token = _choose(logprobs, job, running.generators[sample])
            else:
                logprobs = _log_softmax(scores)
                token = int(np.argmax(logprobs))
            sequence.tokens.append(token)
            sequence.logprobs.append(float(logprobs[token]))
            stopped = self._stops(sequence.tokens, job)
            if stopped:
                running.sequences[sample] = Sampled(sequence.tokens, sequence.logprobs, "stop")
            if stopped or len(sequence.tokens) >= running.limit:
                running.running.remove(sample)
        if running.running:
            return None
        sequences = [
            replace(sequence, topk=running.topk(sample))
            for sample, sequence in enumerate(running.sequences)
        ]
        return _scored(job, running.table, SampleResult(sequences))

    def _stops(self, tokens: list[int], job: SampleJob) -> bool:
        if job.stop == ():
            return False
        if tokens[-1] == 0 or tokens[-1] in (job.stop or ()):
            return True
        text = "".join(chr(token) for token in tokens)
        return any(isinstance(stop, str) and text.endswith(stop) for stop in job.stop or ())

    def _model(self, model: ModelId) -> _Model:
        if model not in self._models:
            raise RequestError(f"there is no model {model}.")
        return self._models[model]


def _log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _choose(logprobs: NDArray[np.float64], job: SampleJob, generator: np.random.Generator) -> int:
    order = np.argsort(-logprobs, kind="stable")
    kept = order[: job.top_k] if job.top_k > 0 else order
    odds = np.exp(logprobs[kept])
    if job.top_p < 1:
        enough = int(np.searchsorted(np.cumsum(odds), job.top_p)) + 1
        kept, odds = kept[:enough], odds[:enough]
    return int(kept[np.searchsorted(np.cumsum(odds / odds.sum()), generator.random())])


def _likeliest(rows: NDArray[np.float64], k: int) -> ScoredTokens:
    tokens = np.argsort(-rows, axis=-1, kind="stable")[:, :k]
    return ScoredTokens(tokens, np.take_along_axis(rows, tokens, -1).astype(np.float32))


def _scored(job: SampleJob, table: NDArray[np.float64], result: SampleResult) -> SampleResult:
    """The result with what was asked of the prompt."""
    prompt = np.asarray(job.prompt)
    scores = table[prompt[:-1]]
    rows = _log_softmax(scores)
    if job.prompt_logprobs:
        own = rows[np.arange(len(rows)), prompt[1:]].tolist()
        result = replace(result, prompt_logprobs=[None, *own])
    if job.topk_prompt_logprobs:
        result = replace(result, topk_prompt=_likeliest(rows, job.topk_prompt_logprobs))
    if job.target_prompt is not None:
        found = np.take_along_axis(rows, np.maximum(job.target_prompt, 0), -1)
        named = np.where(job.target_prompt < 0, 0.0, found).astype(np.float32)
        result = replace(result, target_prompt=named)
    if job.alt_tokens:
        odds = np.exp(_log_softmax(scores / (job.temperature or 1e-9)))
        random = np.random.default_rng(job.seed or 0).random((len(rows), job.alt_tokens, 1))
        tokens = (np.cumsum(odds, -1)[:, None, :-1] < random).sum(-1)
        found = np.take_along_axis(rows, tokens, -1).astype(np.float32)
        result = replace(result, alt_tokens=ScoredTokens(tokens, found))
    return result


def _loss(
    loss: LossSpec, inputs: Mapping[str, NDArray[Any]], logprobs: NDArray[np.float64]
) -> tuple[np.float64, NDArray[np.float64]]:
    """The loss and its derivative by each log-probability."""
    if loss.name == "cross_entropy":
        weights = inputs.get("weights", np.ones_like(logprobs)).astype(np.float64)
        return -(weights * logprobs).sum(), -weights
    ratio = np.exp(logprobs - inputs["logprobs"])
    advantages = inputs["advantages"].astype(np.float64)
    if loss.name == "importance_sampling":
        return -(ratio * advantages).sum(), -ratio * advantages
    settings = settings_of(loss)
    if loss.name == "dro":
        distance = logprobs - inputs["logprobs"]
        terms = 0.5 * settings["beta"] * distance**2 - logprobs * advantages
        return terms.sum(), settings["beta"] * distance - advantages
    low = inputs.get("clip_low_threshold", settings.get("clip_low_threshold"))
    high = inputs.get("clip_high_threshold", settings.get("clip_high_threshold"))
    if loss.name == "gspo":
        marked = inputs["sequence_ratio_mask"] != 0
        ratio = np.full_like(ratio, np.exp((logprobs - inputs["logprobs"])[marked].mean()))
    clip = np.clip(ratio, low, high)
    if loss.name == "cispo":
        return -(clip * logprobs * advantages).sum(), -clip * advantages
    free, clipped = ratio * advantages, clip * advantages
    return -np.minimum(free, clipped).sum(), np.where(free <= clipped, -free, 0.0)


def _write_state(state: _Model, to: Path) -> None:
    facts = {"spec": asdict(state.spec), "steps": state.steps}
    with to.open("wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            facts=np.asarray(json.dumps(facts)),
            table=state.table,
            gradient=state.gradient,
            first=state.first,
            second=state.second,
        )


def _read_state(source: Path) -> _Model:
    try:
        with np.load(source) as file:
            arrays = dict(file)
        facts = json.loads(str(arrays.pop("facts")))
        return _Model(LoraSpec(**facts["spec"]), steps=facts["steps"], **arrays)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ModelError(f"the saved state {source} cannot be used: {error}.") from error


def _read(source: Path) -> tuple[dict[str, NDArray[np.float64]], dict[str, Any]]:
    try:
        with np.load(source / "adapter.npz") as arrays:
            return dict(arrays), json.loads((source / "adapter.json").read_text())
    except OSError as error:
        raise ModelError(f"{source} holds no adapter: {error.strerror}.") from None
