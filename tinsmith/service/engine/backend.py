"""What the service asks of an engine: plain data in, plain data out; no HTTP, no SQL, no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinsmith.errors import TinsmithError

ModelId: TypeAlias = str  # a LoRA being trained
WeightsId: TypeAlias = str  # a frozen copy of one, which sampling reads
Write: TypeAlias = Callable[[Path], None]  # puts a copy that was taken on disk; for any thread
Metrics: TypeAlias = dict[str, float]


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a base model from its directory, before its weights are loaded."""

    name: str
    directory: Path
    architecture: str
    vocab_size: int
    max_context: int
    max_lora_rank: int
    eos_ids: tuple[int, ...]
    on_hub: bool = False  # its name means the same on every machine


@dataclass(frozen=True)
class LoraSpec:
    base_model: str
    rank: int
    seed: int
    alpha: float = 32.0
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True


@dataclass(frozen=True)
class TrainItem:
    """One sequence; position i of `tokens` predicts `inputs["target_tokens"][i]`."""

    tokens: NDArray[np.int64]
    inputs: Mapping[str, NDArray[Any]]  # target_tokens, weights, logprobs, advantages, ...


@dataclass(frozen=True)
class LossSpec:
    name: str  # a key of engine.losses.LOSSES
    params: Mapping[str, float]


@dataclass(frozen=True)
class PassResult:
    outputs: list[dict[str, NDArray[np.float32]]]  # one per item, in request order
    metrics: Metrics  # keys carry their reduction, "loss:sum"


@dataclass(frozen=True)
class AdamSpec:
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0  # 0: no clipping


@dataclass(frozen=True, eq=False)
class CsrLayout:
    """Which cells of a two-dimensional tensor were listed, row by row; the reply lists the same."""

    crow: NDArray[np.int64]
    col: NDArray[np.int64]


@dataclass(frozen=True)
class SampleJob:
    base_model: str
    weights: WeightsId | None  # None: the base model itself
    prompt: tuple[int, ...]
    num_samples: int = 1
    max_tokens: int | None = None  # None: up to the model's context
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str | int, ...] | None = None  # None: at EOS; (): never; else at these and at EOS
    seed: int | None = None
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    # Tokens to score, [len(prompt) - 1, K]: row i at prompt position i + 1; -1: nothing in this cell.
    # Arrays have no single truth value, so jobs are compared without them.
    target_prompt: NDArray[np.int64] | None = field(default=None, compare=False)
    target_layout: CsrLayout | None = field(default=None, compare=False)  # None: dense
    alt_tokens: int = 0  # draws at every prompt position after the first
    stream: bool = False  # Partials come before Finished

    @property
    def scores_prompt(self) -> bool:
        """Whether something is asked of the prompt's own positions."""
        counts = self.topk_prompt_logprobs + self.alt_tokens
        return self.prompt_logprobs or counts > 0 or self.target_prompt is not None


@dataclass(frozen=True, eq=False)
class ScoredTokens:
    """Some tokens at each of some positions; both arrays are [positions, k]."""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True)
class Sampled:
    tokens: list[int]  # includes the token that ended it
    logprobs: list[float]  # of the temperature-scaled distribution
    stop_reason: Literal["stop", "length"]
    topk: ScoredTokens | None = None  # the likeliest first, of the same distribution


@dataclass(frozen=True)
class SampleResult:
    sequences: list[Sampled]
    prompt_logprobs: list[float | None] | None = None  # the first is None
    cached_tokens: int = 0  # prompt tokens whose keys and values were found in the cache
    # Of each prompt position but the first, at temperature 1:
    topk_prompt: ScoredTokens | None = None  # the likeliest first
    target_prompt: NDArray[np.float32] | None = None  # as asked for, 0 in cells of -1
    alt_tokens: ScoredTokens | None = None  # drawn at the job's temperature


@dataclass(frozen=True)
class Partial:
    """New tokens of one sample since its last Partial; only for jobs that stream."""

    job_id: str
    sample: int
    tokens: list[int]
    logprobs: list[float]
    topk: ScoredTokens | None = None


@dataclass(frozen=True)
class Finished:
    job_id: str
    result: SampleResult | TinsmithError


class TrainBackend(Protocol):
    """Calls come one at a time, from the worker thread. Bad requests raise RequestError or ModelError."""

    def describe(self, base_model: str) -> ModelInfo: ...  # cheap; safe from any thread
    def create(self, model: ModelId, spec: LoraSpec) -> None: ...
    def drop(self, model: ModelId) -> None: ...
    def run_pass(
        self, model: ModelId, items: Sequence[TrainItem], loss: LossSpec, *, backward: bool
    ) -> Iterator[float | PassResult]: ...  # progress between micro-batches, the result last
    def optim_step(self, model: ModelId, adam: AdamSpec) -> Metrics: ...
    def freeze(self, model: ModelId, weights: WeightsId) -> Write: ...  # a copy; training goes on
    def save(self, model: ModelId, to: Path, *, optimizer: bool) -> None: ...  # whole or not at all
    def load(self, model: ModelId, source: Path, *, optimizer: bool) -> None: ...
    def capture(self, model: ModelId) -> Write: ...  # all of its state, as one file
    def check(self, source: Path) -> None: ...  # a captured file that cannot be used: ModelError
    def restore(self, model: ModelId, spec: LoraSpec, source: Path) -> None: ...  # exact to the bit
    def adapter_bytes(self, spec: LoraSpec) -> int: ...  # memory that training such a model takes
    def adapter_budget(self) -> int: ...  # memory that adapters should take on this machine
    def memory_report(self) -> Mapping[str, Any]: ...  # bytes by what for; safe from any thread


class SampleBackend(Protocol):
    """TorchBackend is both this and a TrainBackend; a vLLM server would be only this."""

    def load_weights(self, weights: WeightsId, base_model: str, source: Path) -> None: ...
    def drop_weights(self, weights: WeightsId) -> None: ...
    def weights_bytes(self, weights: WeightsId) -> int: ...  # memory they take
    def add(self, job_id: str, job: SampleJob) -> None: ...  # joins the batch at the next step
    def step(self) -> list[Finished | Partial]: ...  # one decode step for all in flight
    def cancel(self, job_id: str) -> None: ...
    @property
    def sampling(self) -> bool: ...  # anything in flight
    @property
    def backlog(self) -> int: ...  # samples added for which there is no room yet


class Backend(TrainBackend, SampleBackend, Protocol):
    """An engine that does both."""
