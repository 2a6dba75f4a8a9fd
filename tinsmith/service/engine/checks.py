"""Whether a request can be carried out, decided before it is queued; every refusal is one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tinsmith.errors import RequestError, one_of
from tinsmith.service.engine.backend import (
    AdamSpec,
    LoraSpec,
    LossSpec,
    ModelInfo,
    SampleJob,
    TrainItem,
)

# Inputs that each loss needs beside the tokens, and settings it takes. The formulas are in losses.py.
LOSS_INPUTS: dict[str, tuple[str, ...]] = {
    "cross_entropy": ("target_tokens",),
    "importance_sampling": ("target_tokens", "logprobs", "advantages"),
    "ppo": ("target_tokens", "logprobs", "advantages"),
}
LOSS_PARAMS: dict[str, tuple[str, ...]] = {
    "cross_entropy": (),
    "importance_sampling": (),
    "ppo": ("clip_low_threshold", "clip_high_threshold"),
}


def check_lora(spec: LoraSpec, info: ModelInfo) -> None:
    if not 1 <= spec.rank <= info.max_lora_rank:
        raise RequestError(
            f"lora rank {spec.rank} is outside 1..{info.max_lora_rank} for {info.name}; "
            f"choose a rank of at most {info.max_lora_rank}."
        )
    if not (spec.train_attn or spec.train_mlp or spec.train_unembed):
        raise RequestError(
            "nothing would be trained: set at least one of train_attn, train_mlp, train_unembed."
        )


def check_loss(loss: LossSpec) -> None:
    if loss.name not in LOSS_INPUTS:
        raise RequestError(one_of("loss_fn", loss.name, list(LOSS_INPUTS)))
    for key, value in loss.params.items():
        if key not in LOSS_PARAMS[loss.name]:
            allowed = ", ".join(LOSS_PARAMS[loss.name]) or "no settings"
            raise RequestError(f"loss_fn {loss.name!r} has no setting {key!r}; it takes {allowed}.")
        if not math.isfinite(value):
            raise RequestError(f"loss_fn_config[{key!r}] must be a finite number (got {value}).")


def check_items(items: Sequence[TrainItem], loss: LossSpec, info: ModelInfo) -> None:
    """Shapes, ranges and finiteness of a whole forward_backward request."""
    check_loss(loss)
    if not items:
        raise RequestError("data is empty; send at least one datum.")
    for index, item in enumerate(items):
        where = f"datum {index}"
        length = len(item.tokens)
        if length == 0:
            raise RequestError(f"{where}: model_input is empty; send at least one token.")
        if length > info.max_context:
            raise RequestError(
                f"{where}: {length} tokens are more than the context of {info.name} "
                f"({info.max_context}); shorten the sequence."
            )
        _check_tokens(item.tokens, info, f"{where}: model_input")
        for name in LOSS_INPUTS[loss.name]:
            if name not in item.inputs:
                raise RequestError(
                    f"{where}: loss_fn {loss.name!r} needs loss_fn_inputs[{name!r}]."
                )
        for name, array in item.inputs.items():
            _check_input(name, array, length, info, where)


def _check_input(name: str, array: np.ndarray, length: int, info: ModelInfo, where: str) -> None:
    if array.shape != (length,):
        raise RequestError(
            f"{where}: loss_fn_inputs[{name!r}] has shape {list(array.shape)}, "
            f"expected [{length}] as model_input has {length} tokens."
        )
    if name == "target_tokens":
        _check_tokens(array, info, f"{where}: target_tokens")
    elif not np.isfinite(array).all():
        position = int(np.flatnonzero(~np.isfinite(array))[0])
        raise RequestError(
            f"{where}: loss_fn_inputs[{name!r}] holds {array[position]} at position {position}; "
            "every value must be finite."
        )


def _check_tokens(tokens: np.ndarray, info: ModelInfo, where: str) -> None:
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= info.vocab_size:
        bad = low if low < 0 else high
        raise RequestError(
            f"{where}: token id {bad} is outside the vocabulary of {info.name} "
            f"(0..{info.vocab_size - 1})."
        )


def check_adam(adam: AdamSpec) -> None:
    for name, low, high in (
        ("learning_rate", 0.0, math.inf),
        ("beta1", 0.0, 1.0),
        ("beta2", 0.0, 1.0),
        ("eps", 0.0, math.inf),
        ("weight_decay", 0.0, math.inf),
        ("grad_clip_norm", 0.0, math.inf),
    ):
        value = getattr(adam, name)
        if not (math.isfinite(value) and low <= value and (value < high)):
            raise RequestError(
                f"{name} must be a finite number in [{low:g}, {high:g}) (got {value})."
            )


def check_sample(job: SampleJob, info: ModelInfo) -> None:
    if not job.prompt:
        raise RequestError("the prompt is empty; send at least one token.")
    _check_tokens(np.asarray(job.prompt), info, "prompt")
    if job.num_samples < 1:
        raise RequestError(f"num_samples must be at least 1 (got {job.num_samples}).")
    if job.max_tokens is not None and job.max_tokens < 1:
        raise RequestError(f"max_tokens must be at least 1 (got {job.max_tokens}).")
    wanted = len(job.prompt) + (job.max_tokens or 1)
    if wanted > info.max_context:
        raise RequestError(
            f"the prompt has {len(job.prompt)} tokens and max_tokens is {job.max_tokens or 1}: together "
            f"more than the context of {info.name} ({info.max_context}); shorten one of them."
        )
    if not (math.isfinite(job.temperature) and job.temperature >= 0):
        raise RequestError(f"temperature must be a finite number >= 0 (got {job.temperature}).")
    if not 0 < job.top_p <= 1:
        raise RequestError(f"top_p must be in (0, 1] (got {job.top_p}).")
    if job.top_k == 0 or job.top_k < -1:
        raise RequestError(f"top_k must be -1 (off) or at least 1 (got {job.top_k}).")
    for stop in job.stop or ():
        if stop == "":
            raise RequestError("a stop string is empty; leave it out or give its text.")
