"""Whether a request can be carried out, decided before it is queued; every refusal is one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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

MAX_SCORED = 16_000_000  # log-probabilities in one table of a sampling request
CLIP = ("clip_low_threshold", "clip_high_threshold")
POLICY = ("target_tokens", "logprobs", "advantages")


@dataclass(frozen=True)
class LossRule:
    """What a loss reads. The formulas are in losses.py."""

    needs: tuple[str, ...]
    takes: tuple[str, ...] = ()  # inputs that may be left out
    settings: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    # settings by default value; None: Tinker's default is not public, so it must be given


LOSS_RULES: dict[str, LossRule] = {
    "cross_entropy": LossRule(("target_tokens",), ("weights",)),
    "importance_sampling": LossRule(POLICY),
    "ppo": LossRule(POLICY, CLIP, dict(zip(CLIP, (0.8, 1.2), strict=True))),
    "cispo": LossRule(POLICY, CLIP, dict(zip(CLIP, (0.0, 4.0), strict=True))),
    "dro": LossRule(POLICY, (), {"beta": None}),
    "gspo": LossRule((*POLICY, "sequence_ratio_mask"), CLIP, dict.fromkeys(CLIP)),
}
NOT_PUBLIC = {
    "stable_reinforce": "its formula is not public, so it is not guessed here; use importance_sampling, "
    "ppo, cispo or gspo, or forward_backward_custom with a formula of your own.",
    "custom": "losses are not run on this server; give forward_backward_custom a Python function, which "
    "runs in your own process.",
}
# Inputs that some loss reads. A datum may carry those of other losses; any other name is a mistake.
KNOWN_INPUTS = frozenset(
    name for rule in LOSS_RULES.values() for name in (*rule.needs, *rule.takes)
)


def settings_of(loss: LossSpec) -> dict[str, float]:
    """The loss's settings as given, else their defaults; none where there is no default."""
    defaults = LOSS_RULES[loss.name].settings
    return {key: value for key, value in defaults.items() if value is not None} | dict(loss.params)


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
    if loss.name in NOT_PUBLIC:
        raise RequestError(f"loss_fn {loss.name!r} is not taken: {NOT_PUBLIC[loss.name]}")
    if loss.name not in LOSS_RULES:
        raise RequestError(one_of("loss_fn", loss.name, list(LOSS_RULES)))
    known = LOSS_RULES[loss.name].settings
    for key, value in loss.params.items():
        if key not in known:
            allowed = ", ".join(known) or "no settings"
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
        for name in LOSS_RULES[loss.name].needs:
            if name not in item.inputs:
                raise RequestError(
                    f"{where}: loss_fn {loss.name!r} needs loss_fn_inputs[{name!r}]."
                )
        for name, array in item.inputs.items():
            _check_input(name, array, item, loss, info, where)
        _check_settings(item, loss, where)


def _check_input(
    name: str, array: np.ndarray, item: TrainItem, loss: LossSpec, info: ModelInfo, where: str
) -> None:
    rule = LOSS_RULES[loss.name]
    if name not in KNOWN_INPUTS:
        takes = ", ".join((*rule.needs, *rule.takes))
        raise RequestError(
            f"{where}: loss_fn {loss.name!r} has no input {name!r} (it takes {takes}); leave it out. A "
            "token is kept out of the loss by a weight or an advantage of 0."
        )
    length = len(item.tokens)
    shape = (length,)
    wanted = f"[{length}] as model_input has {length} tokens"
    if loss.name == "cross_entropy" and name == "target_tokens":
        wanted = f"[{length}] or [{length}, K] as model_input has {length} tokens"
        if array.ndim == 2 and array.shape[1] > 0:
            shape = (length, array.shape[1])
    elif loss.name == "cross_entropy" and name == "weights":
        shape = item.inputs["target_tokens"].shape
        wanted = f"{list(shape)} as target_tokens has"
    if array.shape != shape:
        raise RequestError(
            f"{where}: loss_fn_inputs[{name!r}] has shape {list(array.shape)}, expected {wanted}."
        )
    if name == "target_tokens":
        _check_tokens(array, info, f"{where}: target_tokens")
    elif not np.isfinite(array).all():
        position = np.argwhere(~np.isfinite(array))[0].tolist()
        at = position[0] if len(position) == 1 else position
        raise RequestError(
            f"{where}: loss_fn_inputs[{name!r}] holds {array[tuple(position)]} at position {at}; "
            "every value must be finite."
        )


def _check_settings(item: TrainItem, loss: LossSpec, where: str) -> None:
    """Settings without a public default are given; bounds of a ratio are in order; a mask marks some."""
    settings = settings_of(loss)
    values = settings | {key: item.inputs[key] for key in CLIP if key in item.inputs}
    for key in LOSS_RULES[loss.name].settings:
        if key not in values:
            also = f" or loss_fn_inputs[{key!r}]" if key in CLIP else ""
            raise RequestError(
                f"{where}: loss_fn {loss.name!r} needs {key!r}, whose default on hosted Tinker is not "
                f"public; give loss_fn_config[{key!r}]{also}."
            )
    if CLIP[0] in LOSS_RULES[loss.name].settings and np.any(values[CLIP[0]] > values[CLIP[1]]):
        raise RequestError(f"{where}: {CLIP[0]} is above {CLIP[1]}; it must not be.")
    if loss.name == "gspo" and not item.inputs["sequence_ratio_mask"].any():
        raise RequestError(
            f"{where}: sequence_ratio_mask is 0 everywhere; it must mark the sampled tokens, over "
            "which gspo takes the mean of the ratio."
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
    _check_scores(job, info)
    for stop in job.stop or ():
        if stop == "":
            raise RequestError("a stop string is empty; leave it out or give its text.")


def _check_scores(job: SampleJob, info: ModelInfo) -> None:
    """Tables of log-probabilities that are asked for beside the samples."""
    scored = len(job.prompt) - 1
    longest = job.max_tokens or info.max_context - len(job.prompt)
    targets, vocab = job.target_prompt, info.vocab_size
    for name, rows, columns in (
        ("topk_prompt_logprobs", scored, min(job.topk_prompt_logprobs, vocab)),
        ("prompt_alt_tokens_k", scored, job.alt_tokens),
        ("topk_sample_logprobs", job.num_samples * longest, min(job.topk_sample_logprobs, vocab)),
        ("target_prompt_logprobs", scored, 0 if targets is None else targets.shape[1]),
    ):
        if columns < 0:
            raise RequestError(f"{name} must be 0 or more (got {columns}).")
        if rows * columns > MAX_SCORED:
            raise RequestError(
                f"{name} asks for {columns} log-probabilities at each of up to {rows} positions, more "
                f"than {MAX_SCORED} in all; ask for fewer."
            )
    if targets is None:
        return
    if len(targets) != scored:
        raise RequestError(
            f"target_prompt_logprobs has {len(targets)} rows, expected {scored}: one for each token "
            f"of the prompt ({len(job.prompt)}) but the first."
        )
    if not (targets >= 0).any():
        raise RequestError("target_prompt_logprobs names no token; leave it out.")
    _check_tokens(np.maximum(targets, 0), info, "target_prompt_logprobs")
    if targets.min() < -1:
        raise RequestError(
            f"target_prompt_logprobs: token id {int(targets.min())} is none; -1 leaves a cell empty."
        )
