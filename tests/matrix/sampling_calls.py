"""Calls that sample: samplers of every kind, what can be asked of a sample, and agreement of numbers."""

from __future__ import annotations

import asyncio
import math
import pickle
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
    logprobs,
    method,
    prompt,
    wait,
)


def params(**given: Any) -> tinker.SamplingParams:
    return tinker.SamplingParams(**{"max_tokens": 8, "temperature": 1.0, "seed": 7, **given})


def sample(sampler: Any, count: int = 1, **given: Any) -> Any:
    return wait(sampler.sample(prompt(), count, params(**given)))


@call("create_sampling_client: base model")
def base_sampler(world: World) -> None:
    world["base"] = world.service.create_sampling_client(base_model=world.model)
    check(len(sample(world["base"]).sequences[0].tokens) > 0, "no tokens")


@call("create_sampling_client: checkpoint")
def path_sampler(world: World) -> None:
    world["sampler"] = world.service.create_sampling_client(model_path=world["weights"])
    sample(world["sampler"])
    sample(world["learner"].create_sampling_client(world["weights"]))


@call("save_weights_and_get_sampling_client")
def ephemeral_sampler(world: World) -> None:
    sampler = world["learner"].save_weights_and_get_sampling_client()
    one, other = (sample(s).sequences[0] for s in (sampler, world["sampler"]))
    check(list(one.tokens) == list(other.tokens), "another sampler of the same weights differs")


@call("SamplingClient.get_tokenizer")
def sampler_tokenizer(world: World) -> None:
    tokenizer = method(world["sampler"], "get_tokenizer")()
    check(tokenizer.decode(tokenizer.encode("1 + 2")) == "1 + 2", "text does not come back")


@call("SamplingClient.get_base_model")
def sampler_base(world: World) -> None:
    check(bool(method(world["sampler"], "get_base_model")()), "no name")


@call("sample: tokens, logprobs, stop_reason")
def plain(world: World) -> None:
    sequence = sample(world["sampler"], stop=[]).sequences[0]
    check(len(sequence.tokens) == len(sequence.logprobs) == 8, f"{len(sequence.tokens)} tokens")
    check(sequence.stop_reason == "length", sequence.stop_reason)
    check(all(lp <= 0 for lp in sequence.logprobs), "a logprob above 0")


@call("sample: num_samples")
def several(world: World) -> None:
    found = [tuple(one.tokens) for one in sample(world["base"], 4, max_tokens=12).sequences]
    check(len(found) == 4 and len(set(found)) > 1, "four samples should not all be the same")


@call("sample: seed")
def seed(world: World) -> None:
    one, same = (sample(world["base"], 2, max_tokens=12) for _ in range(2))
    for a, b in zip(one.sequences, same.sequences, strict=True):
        check(list(a.tokens) == list(b.tokens), "the same seed gives other tokens")
        check(list(a.logprobs) == list(b.logprobs), "the same seed gives other logprobs")


@call("sample: temperature, top_k, top_p")
def greedy(world: World) -> None:
    coldest = list(sample(world["base"], temperature=0.0, stop=[]).sequences[0].tokens)
    narrow = list(sample(world["base"], top_k=1, stop=[]).sequences[0].tokens)
    nucleus = list(sample(world["base"], top_p=1e-6, stop=[]).sequences[0].tokens)
    check(coldest == narrow == nucleus, "the likeliest token differs")
    world["greedy"] = coldest


@call("sample: stop")
def stop(world: World) -> None:
    tokens = world["greedy"]
    last = tokens[4]
    found = sample(world["base"], temperature=0.0, stop=[last]).sequences[0]
    check(list(found.tokens) == tokens[: tokens.index(last) + 1], f"{found.tokens} of {tokens}")
    check(found.stop_reason == "stop", found.stop_reason)
    tokenizer = world["tokenizer"]
    letters = [c for c in tokenizer.decode(tokens) if c.isalnum()]
    if letters:
        found = sample(world["base"], temperature=0.0, stop=letters[-1:]).sequences[0]
        check(letters[-1] in tokenizer.decode(found.tokens), "the stop is not in the text")
        check(found.stop_reason == "stop", found.stop_reason)


@call("compute_logprobs")
def compute_logprobs(world: World) -> None:
    found = wait(world["sampler"].compute_logprobs(prompt()))
    check(found[0] is None, "the first token has a logprob")
    check_close(found[1:], logprobs(wait(world["learner"].forward([datum()], "cross_entropy"))))


@call("logprobs of sampler and trainer agree")
def agreement(world: World) -> None:
    sequence = sample(world["sampler"], max_tokens=16, stop=[]).sequences[0]
    whole = [*TOKENS, *sequence.tokens]
    scored = wait(world["sampler"].compute_logprobs(prompt(whole)))
    check_close(sequence.logprobs, scored[len(TOKENS) :])
    passed = wait(world["learner"].forward([datum(whole)], "cross_entropy"))
    check_close(sequence.logprobs, logprobs(passed)[len(TOKENS) - 1 :])


@call("sample: include_prompt_logprobs")
def prompt_logprobs(world: World) -> None:
    found = wait(world["sampler"].sample(prompt(), 1, params(), include_prompt_logprobs=True))
    scored = wait(world["sampler"].compute_logprobs(prompt()))
    check_close(list(found.prompt_logprobs)[1:], list(scored)[1:])


@call("sample: topk_prompt_logprobs")
def topk_prompt(world: World) -> None:
    ask = method(world["sampler"], "sample", "topk_prompt_logprobs")
    given = {"include_prompt_logprobs": True, "topk_prompt_logprobs": 3}
    found = wait(ask(prompt(), 1, params(), **given))
    rows = list(found.topk_prompt_logprobs)
    check(len(rows) == len(TOKENS) and rows[0] is None, f"{len(rows)} rows")
    for row, token, scored in list(zip(rows, TOKENS, found.prompt_logprobs, strict=True))[1:]:
        best = [lp for _, lp in row]
        check(len(row) == 3 and best == sorted(best, reverse=True), "not the three best, in order")
        check_close([lp for one, lp in row if one == token], [scored] * (token in dict(row)))


@call("sample: topk_sample_logprobs")
def topk_sample(world: World) -> None:
    ask = method(world["sampler"], "sample", "topk_sample_logprobs")
    sequence = wait(ask(prompt(), 1, params(top_k=1, stop=[]), topk_sample_logprobs=2)).sequences[0]
    table = next(
        (
            getattr(sequence, name)
            for name in ("topk_logprobs", "topk_sampled_logprobs", "topk_sample_logprobs")
            if getattr(sequence, name, None) is not None
        ),
        None,
    )
    check(table is not None, "no table")
    rows = [[int(token) for token, _ in row] for row in table]
    check([row[0] for row in rows] == list(sequence.tokens), "the best are not the greedy tokens")


@call("sample: target_prompt_logprobs")
def target_prompt(world: World) -> None:
    ask = method(world["sampler"], "sample", "target_prompt_logprobs")
    targets = tinker.TensorData(data=TOKENS[1:], dtype="int64", shape=[len(TOKENS) - 1, 1])
    found = wait(ask(prompt(), 1, params(), target_prompt_logprobs=targets)).target_prompt_logprobs
    scored = wait(world["sampler"].compute_logprobs(prompt()))
    check_close([float(x) for x in found.to_numpy().reshape(-1)], list(scored)[1:])


@call("sample: prompt_alt_tokens_k")
def alternatives(world: World) -> None:
    ask = method(world["sampler"], "sample", "prompt_alt_tokens_k")
    found = wait(ask(prompt(), 1, params(), prompt_alt_tokens_k=2)).prompt_alt_tokens
    check(tuple(found.tokens.shape) == (len(TOKENS) - 1, 2), f"shape {found.tokens.shape}")
    check(tuple(found.logprobs.shape) == (len(TOKENS) - 1, 2), f"shape {found.logprobs.shape}")


@call("compute_logprobs: prompt_logprobs_last_n")
def last_n(world: World) -> None:
    ask = method(world["sampler"], "compute_logprobs", "prompt_logprobs_last_n")
    found = list(wait(ask(prompt(), prompt_logprobs_last_n=3)))
    check_close(found[-3:], list(wait(world["sampler"].compute_logprobs(prompt())))[-3:])
    missing = [lp is None or math.isnan(lp) for lp in found[:-3]]
    check(all(missing), "earlier positions are scored")


@call("a pickled SamplingClient")
def clone(world: World) -> None:
    try:
        copy = pickle.loads(pickle.dumps(world["sampler"]))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise Absent(f"cannot be pickled: {error}") from None
    one, other = (sample(s).sequences[0] for s in (copy, world["sampler"]))
    check(list(one.tokens) == list(other.tokens), "the copy samples something else")


@call("100 samples in flight")
def many(world: World) -> None:
    asked = [world["base"].sample(prompt(), 1, params(seed=number)) for number in range(100)]
    check(all(len(wait(one).sequences[0].tokens) > 0 for one in asked), "one has no tokens")


@call("sampling, async")
def sampling_async(world: World) -> None:
    async def go() -> None:
        sampler = await awaited(world.service.create_sampling_client_async(base_model=world.model))
        found = await asyncio.gather(
            *(sampler.sample_async(prompt(), 1, params(seed=number)) for number in range(4))
        )
        check(len(found) == 4, "not four")
        scored = await sampler.compute_logprobs_async(prompt())
        check(len(scored) == len(TOKENS), f"{len(scored)} logprobs")
        ephemeral = await awaited(world["learner"].save_weights_and_get_sampling_client_async())
        await ephemeral.sample_async(prompt(), 1, params())

    asyncio.run(go())
