"""Calls that train: passes with every loss, optimizer steps, saving, loading, going on."""

from __future__ import annotations

import asyncio
import inspect
import typing
from typing import Any

import tinker
from harness import (
    TOKENS,
    Absent,
    World,
    awaited,
    call,
    check,
    check_close,
    datum,
    floats,
    logprobs,
    method,
    wait,
)

LENGTH = len(TOKENS) - 1
WEIGHTS = [0.5 + index / LENGTH for index in range(LENGTH)]
ADVANTAGES = [1.0 if index % 3 else -0.5 for index in range(LENGTH)]
ADAM = tinker.AdamParams(learning_rate=0.01)


def loss(trainer: Any) -> float:
    """Of the model as it is, without touching its gradients."""
    return wait(trainer.forward([datum(weights=WEIGHTS)], "cross_entropy")).metrics["loss:sum"]


def trained(trainer: Any, steps: int = 3) -> None:
    for _ in range(steps):
        wait(trainer.forward_backward([datum(weights=WEIGHTS)], "cross_entropy"))
        wait(trainer.optim_step(ADAM))


@call("get_server_capabilities")
def capabilities(world: World) -> None:
    names = [model.model_name for model in world.service.get_server_capabilities().supported_models]
    check(world.model in names, f"{world.model} is not among {names}")


@call("create_lora_training_client")
def create(world: World) -> None:
    world["trainer"] = world.service.create_lora_training_client(
        world.model, rank=8, seed=1, user_metadata={"purpose": "matrix"}
    )


@call("TrainingClient.get_info")
def get_info(world: World) -> None:
    info = world["trainer"].get_info()
    check(info.model_data.model_name == world.model, f"model_name is {info.model_data.model_name}")
    world["run"] = info.model_id
    check(info.lora_rank == 8, f"lora_rank is {info.lora_rank}")


@call("TrainingClient.get_tokenizer")
def get_tokenizer(world: World) -> None:
    world["tokenizer"] = tokenizer = world["trainer"].get_tokenizer()
    check(tokenizer.decode(tokenizer.encode("1 + 2 = 3")) == "1 + 2 = 3", "text does not come back")


@call("forward")
def forward(world: World) -> None:
    result = wait(world["trainer"].forward([datum(weights=WEIGHTS)], "cross_entropy"))
    world["logprobs"] = found = logprobs(result)
    wanted = -sum(w * lp for w, lp in zip(WEIGHTS, found, strict=True))
    check_close([result.metrics["loss:sum"]], [wanted])


@call("forward_backward: cross_entropy")
def cross_entropy(world: World) -> None:
    data = [datum(weights=WEIGHTS), datum(TOKENS[:5], weights=[1, 0, -1, 2])]
    result = wait(world["trainer"].forward_backward(data, "cross_entropy"))
    check_close(logprobs(result), world["logprobs"])
    check(len(logprobs(result, 1)) == 4, "the second datum has other logprobs")


def policy_loss(world: World, name: str, **config: float) -> float:
    """The loss where the sampler's logprobs are the model's own."""
    if name not in typing.get_args(tinker.types.LossFnType):
        raise Absent(f"no loss {name}")
    inputs: dict[str, Any] = {"logprobs": world["logprobs"], "advantages": ADVANTAGES}
    if name == "gspo":
        inputs["sequence_ratio_mask"] = [1.0] * LENGTH
    data = [datum(**inputs)]
    result = wait(world["trainer"].forward_backward(data, name, loss_fn_config=config or None))
    check_close(logprobs(result), world["logprobs"])
    return result.metrics["loss:sum"]


def weighted_logprobs(world: World) -> float:
    return sum(a * lp for a, lp in zip(ADVANTAGES, world["logprobs"], strict=True))


@call("forward_backward: importance_sampling")
def importance_sampling(world: World) -> None:
    check_close([policy_loss(world, "importance_sampling")], [-sum(ADVANTAGES)])


@call("forward_backward: ppo")
def ppo(world: World) -> None:
    found = policy_loss(world, "ppo", clip_low_threshold=0.9, clip_high_threshold=1.1)
    check_close([found], [-sum(ADVANTAGES)])


@call("forward_backward: cispo")
def cispo(world: World) -> None:
    check_close([policy_loss(world, "cispo")], [-weighted_logprobs(world)])


@call("forward_backward: dro")
def dro(world: World) -> None:
    check_close([policy_loss(world, "dro", beta=0.05)], [-weighted_logprobs(world)])


@call("forward_backward: gspo")
def gspo(world: World) -> None:
    found = policy_loss(world, "gspo", clip_low_threshold=0.9, clip_high_threshold=1.1)
    check_close([found], [-sum(ADVANTAGES)])


@call("forward_backward: several targets a position")
def several_targets(world: World) -> None:
    first = TOKENS[1:]
    pairs = [token for pair in zip(first, reversed(first), strict=True) for token in pair]
    weights = [0.7, 0.3] * LENGTH
    one = datum()
    one.loss_fn_inputs["target_tokens"] = tinker.TensorData(
        data=pairs, dtype="int64", shape=[LENGTH, 2]
    )
    one.loss_fn_inputs["weights"] = tinker.TensorData(
        data=weights, dtype="float32", shape=[LENGTH, 2]
    )
    result = wait(world["trainer"].forward_backward([one], "cross_entropy"))
    check(tuple(result.loss_fn_outputs[0]["logprobs"].shape) == (LENGTH, 2), "not one for each")
    check_close(logprobs(result)[::2], world["logprobs"])


@call("forward_backward: sparse targets")
def sparse_targets(world: World) -> None:
    if "sparse_crow_indices" not in inspect.signature(tinker.TensorData).parameters:
        raise Absent("no sparse tensors")
    rows = {
        "shape": [LENGTH, 9],
        "sparse_crow_indices": list(range(LENGTH + 1)),
        "sparse_col_indices": [4] * LENGTH,
    }
    one = datum()
    one.loss_fn_inputs["target_tokens"] = tinker.TensorData(data=TOKENS[1:], dtype="int64", **rows)
    one.loss_fn_inputs["weights"] = tinker.TensorData(data=WEIGHTS, dtype="float32", **rows)
    result = wait(world["trainer"].forward_backward([one], "cross_entropy"))
    check_close(logprobs(result)[4::9], world["logprobs"])


@call("forward_backward: 1,100 datums at once")
def many_datums(world: World) -> None:
    data = [
        datum(TOKENS[: 3 + index % 5], weights=[1.0] * (2 + index % 5)) for index in range(1100)
    ]
    result = wait(world["trainer"].forward_backward(data, "cross_entropy"))
    sizes = [len(logprobs(result, index)) for index in range(1100)]
    check(sizes == [2 + index % 5 for index in range(1100)], "the outputs are in another order")
    total = -sum(sum(logprobs(result, index)) for index in range(1100))
    check_close([result.metrics["loss:sum"]], [total])


@call("forward_backward: chunks that arrive out of order")
def out_of_order(world: World) -> None:
    holder = world["trainer"].holder
    config = getattr(holder, "_client_config", None)
    if not hasattr(config, "parallel_fwdbwd_chunks"):
        raise Absent("chunks are sent in order")
    data = [datum(TOKENS[: 3 + index % 5], weights=[1.0] * (2 + index % 5)) for index in range(40)]
    whole = wait(world["trainer"].forward(data, "cross_entropy"))
    changes = {"parallel_fwdbwd_chunks": True, "fwdbwd_max_chunk_len": 8}
    known = {name: value for name, value in changes.items() if hasattr(config, name)}
    holder._client_config = config.model_copy(update=known)
    try:
        if len(known) == 1:
            data *= 30
        result = wait(world["trainer"].forward_backward(data, "cross_entropy"))
        wait(world["trainer"].optim_step(tinker.AdamParams(learning_rate=0.0)))
    finally:
        holder._client_config = config
    for index in range(40):
        check_close(logprobs(result, index), logprobs(whole, index))


@call("forward_backward_custom")
def custom(world: World) -> None:
    method(world["trainer"], "forward_backward_custom")

    def squares(data: Any, found: Any) -> Any:
        value = (found[0] ** 2).sum()
        return value, {"squares": float(value)}

    data = [datum(weights=[1.0] * LENGTH)]
    result = wait(world["trainer"].forward_backward_custom(data, squares))
    check_close([result.metrics["squares"]], [sum(lp**2 for lp in world["logprobs"])])


@call("optim_step")
def optim_step(world: World) -> None:
    trainer = world.service.create_lora_training_client(world.model, rank=8, seed=2)
    before = loss(trainer)
    trained(trainer, 5)
    after = loss(trainer)
    check(after < 0.9 * before, f"the loss went from {before:.3f} to {after:.3f}")
    world["learner"], world["learned"] = trainer, after


@call("optim_step: weight decay and clipping")
def optim_extras(world: World) -> None:
    if "grad_clip_norm" not in inspect.signature(tinker.AdamParams).parameters:
        raise Absent("no grad_clip_norm")
    adam = tinker.AdamParams(learning_rate=1e-6, weight_decay=0.1, grad_clip_norm=0.5)
    wait(world["learner"].forward_backward([datum(weights=WEIGHTS)], "cross_entropy"))
    wait(world["learner"].optim_step(adam))
    check_close([loss(world["learner"])], [world["learned"]], within=1e-2)
    world["learned"] = loss(world["learner"])


@call("save_state")
def save_state(world: World) -> None:
    world["state"] = path = wait(world["learner"].save_state("one")).path
    check(path.startswith("tinker://") and path.endswith("/weights/one"), path)


@call("load_state")
def load_state(world: World) -> None:
    trainer = world.service.create_lora_training_client(world.model, rank=8, seed=3)
    wait(trainer.load_state(world["state"]))
    check_close([loss(trainer)], [world["learned"]])


@call("load_state_with_optimizer")
def load_state_with_optimizer(world: World) -> None:
    trainer = world.service.create_lora_training_client(world.model, rank=8, seed=3)
    wait(method(trainer, "load_state_with_optimizer")(world["state"]))
    check_close([loss(trainer)], [world["learned"]])


@call("create_training_client_from_state")
def from_state(world: World) -> None:
    trainer = world.service.create_training_client_from_state(world["state"])
    check_close([loss(trainer)], [world["learned"]])


@call("create_training_client_from_state_with_optimizer")
def from_state_with_optimizer(world: World) -> None:
    create = method(world.service, "create_training_client_from_state_with_optimizer")
    trainer = create(world["state"])
    trained(trainer)
    trained(world["learner"])
    check_close([loss(trainer)], [loss(world["learner"])], within=1e-5)
    world["learned"] = loss(world["learner"])


@call("save_weights_for_sampler")
def save_for_sampler(world: World) -> None:
    world["weights"] = path = wait(world["learner"].save_weights_for_sampler("one")).path
    check(path.endswith("/sampler_weights/one"), path)


@call("save_weights_external")
def save_external(world: World) -> None:
    save = method(world["learner"], "save_weights_external")
    world["external"] = path = wait(save("one")).path
    check(path.endswith("/external_weights/one"), path)


@call("a refused request, and the next one")
def refused(world: World) -> None:
    wrong = datum(weights=WEIGHTS)
    wrong.loss_fn_inputs["weights"] = floats([1.0])
    try:
        wait(world["trainer"].forward_backward([wrong], "cross_entropy"))
    except Exception as error:  # noqa: BLE001 - its kind differs between versions
        check("weights" in str(error), f"the reason is not in {error}")
    else:
        raise AssertionError("weights of a wrong length were taken")
    check(loss(world["trainer"]) > 0, "the next request does not work")


@call("training, async")
def training_async(world: World) -> None:
    async def go() -> None:
        trainer = await world.service.create_lora_training_client_async(world.model, rank=4, seed=4)
        data = [datum(weights=WEIGHTS)]
        passed = await trainer.forward_backward_async(data, "cross_entropy")
        stepped = await trainer.optim_step_async(ADAM)
        before = (await awaited(passed)).metrics["loss:sum"]
        await awaited(stepped)
        after = await awaited(await trainer.forward_async(data, "cross_entropy"))
        check(after.metrics["loss:sum"] < before, "the loss did not fall")
        saved = await awaited(await trainer.save_state_async("two"))
        again = await awaited(world.service.create_training_client_from_state_async(saved.path))
        result = await awaited(await again.forward_async(data, "cross_entropy"))
        check_close([result.metrics["loss:sum"]], [after.metrics["loss:sum"]])

    asyncio.run(go())
