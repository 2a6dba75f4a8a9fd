"""Request bodies to what the worker does; used when a request arrives and when a journal is replayed."""

from __future__ import annotations

import secrets
from math import prod

import numpy as np
import orjson
from numpy.typing import NDArray

from tinsmith.errors import RequestError
from tinsmith.service.engine.backend import (
    AdamSpec,
    CsrLayout,
    LoraSpec,
    LossSpec,
    ModelInfo,
    SampleJob,
    TrainItem,
)
from tinsmith.service.engine.checks import MAX_SCORED, check_adam, check_items, check_sample
from tinsmith.service.ops import Create, Freeze, Load, OpKind, Pass, Payload, Sample, Save
from tinsmith.service.store.checkpoints import CheckpointShelf, Kind, TinkerPath, check_name
from tinsmith.service.store.rows import Checkpoint
from tinsmith.service.tenants import Model, Sampler, spec_fields
from tinsmith.service.wire import old_json, proto, tensors, types

SAVED_AS: dict[OpKind, Kind] = {
    OpKind.SAVE: "weights",
    OpKind.SAVE_SAMPLER: "sampler_weights",
    OpKind.SAVE_EXTERNAL: "external_weights",
}


def payload_of(kind: OpKind, body: bytes, model: Model, shelf: CheckpointShelf) -> Payload:
    """What a journalled request of a model asks for."""
    match kind:
        case OpKind.CREATE:
            return create_of(body, model.spec, shelf)
        case OpKind.PASS:
            return pass_of(body, model.info)
        case OpKind.OPTIM:
            return optim_of(types.parse(types.OptimStep, body))
        case OpKind.FREEZE:
            return freeze_of(types.parse(types.SaveWeightsForSampler, body), model)
        case OpKind.SAVE | OpKind.SAVE_SAMPLER | OpKind.SAVE_EXTERNAL:
            asked = types.parse(types.SaveWeights, body)
            return save_of(asked, model, SAVED_AS[kind])
        case OpKind.LOAD:
            return load_of(types.parse(types.LoadWeights, body), model.spec, shelf)
        case OpKind.SAMPLE | OpKind.DROP | OpKind.REFUSED:
            raise AssertionError(f"{kind} is not an op of a model's journal")


# models


def lora_of(asked: types.CreateModel) -> LoraSpec:
    if asked.lora_config is None:
        raise RequestError("lora_config is missing: this service trains LoRA adapters only.")
    check_optimizer(asked.optimizer_config)
    lora = asked.lora_config
    return LoraSpec(
        base_model=asked.base_model,
        rank=lora.rank,
        seed=lora.seed if lora.seed is not None else secrets.randbits(31),
        train_attn=lora.train_attn,
        train_mlp=lora.train_mlp,
        train_unembed=lora.train_unembed,
    )


def check_optimizer(config: types.OptimizerConfig) -> None:
    if config.type != "adamw":
        raise RequestError(f"the optimizer {config.type!r} is not there; this service has adamw.")


def create_of(body: bytes, spec: LoraSpec, shelf: CheckpointShelf) -> Create:
    """A new model; a body that names a checkpoint (load_weights without a model) starts from it."""
    if "path" not in orjson.loads(body):
        return Create(spec)
    return Create(spec, load_of(types.parse(types.LoadWeights, body), spec, shelf))


def lora_of_checkpoint(checkpoint: Checkpoint) -> LoraSpec:
    return LoraSpec(**checkpoint.spec)


# training


def pass_of(body: bytes, info: ModelInfo) -> Pass:
    if old_json.is_json(body):
        return checked_pass(old_json.decode_forward_backward(body), info)
    return checked_pass(proto.decode_forward_backward(proto.parse_forward_backward(body)), info)


def checked_pass(asked: proto.ForwardBackward, info: ModelInfo) -> Pass:
    items = tuple(TrainItem(datum.tokens, datum.inputs) for datum in asked.data)
    loss = LossSpec(asked.loss_fn, asked.loss_params)
    check_items(items, loss, info)
    return Pass(items, loss, backward=not asked.forward_only)


def optim_of(asked: types.OptimStep) -> AdamSpec:
    if asked.optimizer_params is not None:
        raise RequestError(
            f"optimizer_params of type {asked.optimizer_params.type!r} are not taken; send adam_params."
        )
    adam = AdamSpec(**(asked.adam_params or types.AdamParams()).model_dump())
    check_adam(adam)
    return adam


# weights


def freeze_of(asked: types.SaveWeightsForSampler, model: Model) -> Freeze:
    return Freeze(f"{model.session}:sample:{asked.sampling_session_seq_id}")


def save_of(
    asked: types.SaveWeights | types.SaveWeightsForSampler, model: Model, kind: Kind
) -> Save:
    name = check_name(asked.path if asked.path is not None else f"{asked.seq_id:06d}")
    return Save(
        path=str(TinkerPath(model.id, kind, name)),
        seq_id=asked.seq_id,
        base_model=model.spec.base_model,
        spec=spec_fields(model.spec),
        optimizer=kind == "weights",
        overwrite=isinstance(asked, types.SaveWeights) and asked.overwrite,
        ttl_seconds=asked.ttl_seconds,
        user_metadata=asked.user_metadata or {},
        recipients=tuple(asked.age_encryption_recipients or ())
        if isinstance(asked, types.SaveWeights)
        else (),
    )


def load_of(asked: types.LoadWeights, spec: LoraSpec, shelf: CheckpointShelf) -> Load:
    checkpoint, directory = shelf.find(asked.path)
    _check_fits(checkpoint, spec)
    if asked.optimizer and checkpoint.kind != "weights":
        raise RequestError(
            f"{asked.path} was saved for sampling and has no optimizer state; "
            "load it without, or load a checkpoint of save_state."
        )
    return Load(asked.path, directory, asked.optimizer)


def _check_fits(checkpoint: Checkpoint, spec: LoraSpec) -> None:
    """A checkpoint can be loaded into a model of the same base and shape only."""
    wanted, given = spec_fields(spec), checkpoint.spec
    for name in ("base_model", "rank", "train_attn", "train_mlp", "train_unembed"):
        if wanted[name] != given.get(name):
            raise RequestError(
                f"{checkpoint.path} has {name} {given.get(name)} and the model has {wanted[name]}; "
                "use create_training_client_from_state, which makes a model that fits."
            )


# sampling


def sample_of(asked: types.SampleRequest, sampler: Sampler, info: ModelInfo) -> Sample:
    targets, layout = _targets_of(asked.target_prompt_logprobs)
    params = asked.sampling_params
    stop = (params.stop,) if isinstance(params.stop, str) else params.stop
    job = SampleJob(
        base_model=sampler.base_model,
        weights=sampler.weights,
        prompt=asked.tokens(),
        num_samples=asked.num_samples,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        stop=None if stop is None else tuple(stop),
        seed=params.seed,
        prompt_logprobs=bool(asked.prompt_logprobs),
        topk_prompt_logprobs=asked.topk_prompt_logprobs,
        topk_sample_logprobs=asked.topk_sample_logprobs,
        target_prompt=targets,
        target_layout=layout,
        alt_tokens=asked.prompt_alt_tokens_k,
    )
    check_sample(job, info)
    _check_last_n(asked.prompt_logprobs_last_n, job)
    return Sample(job, sampler.source, asked.prompt_logprobs_last_n)


def _targets_of(
    table: types.TokenTable | None,
) -> tuple[NDArray[np.int64] | None, CsrLayout | None]:
    """The tokens to score, dense with -1 in cells that are not listed, and which were listed."""
    if table is None:
        return None, None
    where = "target_prompt_logprobs"
    if prod(table.shape) > MAX_SCORED:  # before a small sparse table becomes a large one
        raise RequestError(
            f"{where} has {prod(table.shape)} cells, more than the {MAX_SCORED} of one request."
        )
    data, crow, col = (
        np.asarray(values or [], dtype="<i8")
        for values in (table.data, table.sparse_crow_indices, table.sparse_col_indices)
    )
    if table.sparse_crow_indices is None:
        return tensors.dense(data.tobytes(), tensors.INT64, table.shape, where), None
    full = tensors.sparse(
        data.tobytes(), crow.tobytes(), col.tobytes(), tensors.INT64, table.shape, where, pad=-1
    )
    return full, CsrLayout(crow, col)


def _check_last_n(last_n: int | None, job: SampleJob) -> None:
    if last_n is None:
        return
    if not job.prompt_logprobs:
        raise RequestError("prompt_logprobs_last_n needs prompt_logprobs; set both or neither.")
    if last_n > len(job.prompt) - 1:
        raise RequestError(
            f"prompt_logprobs_last_n is {last_n}, but a prompt of {len(job.prompt)} tokens has "
            f"{len(job.prompt) - 1} that can be scored; give at most that, or leave it out."
        )
