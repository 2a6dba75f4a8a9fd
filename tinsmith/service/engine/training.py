"""One forward or forward-backward pass over packed sequences, a micro-batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from tinsmith.errors import RequestError
from tinsmith.service.engine.backend import LossSpec, PassResult, TrainItem
from tinsmith.service.engine.batching import PackedBatch, causal_attention, pack
from tinsmith.service.engine.checks import LOSS_RULES, settings_of
from tinsmith.service.engine.decoder import run_decoder
from tinsmith.service.engine.lora import Adapter, LoraPair
from tinsmith.service.engine.losses import LOSSES, SEQUENCE_LOG_RATIO, sequence_log_ratios
from tinsmith.service.engine.model import BaseModel
from tinsmith.service.engine.vocab_loss import VocabLoss, token_logprobs

# Bytes of activations that one micro-batch may keep for its backward pass.
ACTIVATION_BYTES = {"cpu": 1 << 30, "cuda": 16 << 30}


def training_pass(
    base: BaseModel,
    adapter: Adapter,
    items: Sequence[TrainItem],
    loss: LossSpec,
    *,
    backward: bool,
) -> Iterator[float | PassResult]:
    """Yields the share done after each micro-batch, then the result.

    The gradient is added to the adapter's only when the whole pass went well, so a pass that fails
    or is abandoned leaves nothing behind.
    """
    loss = replace(loss, params=settings_of(loss))
    batches = pack(items, _token_budget(base), _inputs_of(items, loss), base.device)
    pairs, gradient = adapter.trainable(base.dtype)
    outputs: list[dict[str, np.ndarray]] = [{} for _ in items]
    total, done = 0.0, 0
    tokens = sum(len(item.tokens) for item in items)
    for batch in batches:
        value, logprobs = _micro_batch(base, pairs, batch, loss, backward=backward)
        total += value
        host = logprobs.float().cpu().numpy()
        for index, part in zip(
            batch.order, np.split(host, np.cumsum(batch.lengths)[:-1]), strict=True
        ):
            columns = items[index].inputs["target_tokens"].shape[1:]  # () or (K,)
            outputs[index] = {"logprobs": part[:, : columns[0]] if columns else part}
        done += len(batch.tokens)
        yield done / tokens
    # A clipped ratio that overflowed leaves a finite loss and a gradient of inf * 0.
    finite = bool(np.isfinite(total))
    if not finite or (backward and not bool(gradient.sum().isfinite())):
        what = "loss has no finite gradient" if finite else f"loss is {total}"
        raise RequestError(
            f"the {what}, so its gradient was dropped; check logprobs and advantages "
            "(a ratio exp(logprob - logprobs) may have overflowed)."
        )
    if backward:
        adapter.gradient += gradient
    yield PassResult(outputs, {"loss:sum": total})


def _inputs_of(items: Sequence[TrainItem], loss: LossSpec) -> dict[str, float]:
    """Inputs that this loss reads and some item gives, with what the others have in their place."""
    rule = LOSS_RULES[loss.name]
    defaults = {"weights": 1.0, **loss.params}
    given = {name for item in items for name in item.inputs}
    if any(item.inputs["target_tokens"].ndim == 2 for item in items):
        given.add("weights")  # so that cells which only fill up a row have weight 0
    taken = {name: defaults.get(name, 0.0) for name in rule.takes if name in given}
    return dict.fromkeys(rule.needs, 0.0) | taken


def _micro_batch(
    base: BaseModel,
    pairs: dict[str, LoraPair],
    batch: PackedBatch,
    loss: LossSpec,
    *,
    backward: bool,
) -> tuple[float, torch.Tensor]:
    attend = partial(_attend, batch.runs)
    adapters = [(0, len(batch.tokens), pairs)]
    pair = pairs.get("head")
    loss_fn = LOSSES[loss.name]
    inputs = batch.inputs
    with torch.set_grad_enabled(backward):
        hidden = run_decoder(base, batch.tokens, batch.positions, attend, adapters)
        if "sequence_ratio_mask" in inputs:  # known before the loss takes its tokens in chunks
            with torch.no_grad():
                logprobs = token_logprobs(hidden, inputs["target_tokens"], base.head, pair)
            ratios = sequence_log_ratios(logprobs, inputs, batch.lengths)
            inputs = inputs | {SEQUENCE_LOG_RATIO: ratios}
        if not backward:
            logprobs = token_logprobs(hidden, inputs["target_tokens"], base.head, pair)
            terms = loss_fn(logprobs, inputs, loss.params)
            return float(terms.double().sum()), logprobs
        factors = () if pair is None else (pair.a, *pair.bs)
        scale = 1.0 if pair is None else pair.scale
        value, logprobs = VocabLoss.apply(  # pyright: ignore[reportGeneralTypeIssues]
            hidden, base.head, loss_fn, loss.params, inputs, scale, *factors
        )
        if value.requires_grad:
            value.backward()
    return float(value.detach()), logprobs.detach()


def _attend(
    runs: list[tuple[int, int]], layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    return causal_attention(runs, q, k, v)


def _token_budget(base: BaseModel) -> int:
    """Tokens whose saved activations fit: per layer about six hidden, three MLP and two qkv rows."""
    config = base.config
    a_layer = (
        6 * config.hidden + 3 * config.intermediate + 3 * config.query_size + 4 * config.kv_size
    )
    a_token = config.layers * a_layer * base.dtype.itemsize
    return max(1024, ACTIVATION_BYTES[base.device.type] // a_token)
