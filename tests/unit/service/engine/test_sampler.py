"""Sampling: equal to the trainer, independent of the crowd, cached prefixes, stops, limits."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.unit.service.engine.conftest import KINDS, make_items
from tests.unit.service.engine.test_against_transformers import backend_with, randomise, run
from tinsmith.errors import ModelError, RequestError
from tinsmith.service.engine import training
from tinsmith.service.engine.backend import LossSpec, SampleJob, SampleResult, TrainItem
from tinsmith.service.engine.choose import Choices, choose, row_key, uniforms
from tinsmith.service.engine.sampler import Sampler
from tinsmith.service.engine.torch_backend import TorchBackend


def drain(backend: TorchBackend) -> dict[str, SampleResult]:
    results: dict[str, SampleResult] = {}
    while backend.sampling:
        for done in backend.step():
            assert isinstance(done.result, SampleResult), done.result
            results[done.job_id] = done.result
    return results


def sample(backend: TorchBackend, job: SampleJob) -> SampleResult:
    backend.add("only", job)
    return drain(backend)["only"]


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(2, 96, length).tolist())


@pytest.fixture
def trained(model_directory):
    """A backend with two different adapters, a and b, frozen for sampling."""
    backend = backend_with(model_directory("qwen3"), model="a")
    for name, seed in (("a", 1), ("b", 2)):
        backend.create(name, backend.adapters["a"].spec)
        randomise(backend, name, seed)
        backend.freeze(name, name)
    return backend


def test_sampled_logprobs_equal_the_trainers(trained, model_directory):
    name = str(model_directory("qwen3"))
    for length in (1, 5, 16, 40):
        prompt = prompt_of(length, length)
        result = sample(trained, SampleJob(name, "a", prompt, 3, 50, stop=(), seed=length))
        for sequence in result.sequences:
            tokens = np.array([*prompt, *sequence.tokens])
            item = TrainItem(tokens[:-1], {"target_tokens": tokens[1:]})
            expected = run(trained, [item], backward=False, model="a").outputs[0]["logprobs"]
            got = np.array(sequence.logprobs)
            np.testing.assert_allclose(got, expected[length - 1 :], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_logprobs_equal_transformers(kind, model_directory, oracle):
    backend = TorchBackend(device="cpu", dtype="float32")
    prompt = prompt_of(3, 37)
    job = SampleJob(str(model_directory(kind)), None, prompt, 1, 1, prompt_logprobs=True)
    result = sample(backend, job)
    with torch.no_grad():
        logits = oracle(kind)(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert result.prompt_logprobs is not None
    assert result.prompt_logprobs[0] is None
    expected = logits[range(36), prompt[1:]]
    np.testing.assert_allclose(np.array(result.prompt_logprobs[1:]), expected, atol=1e-4, rtol=0)


def test_greedy_tokens_equal_transformers(model_directory, oracle):
    for kind in KINDS:
        backend = TorchBackend(device="cpu", dtype="float32")
        prompt = prompt_of(9, 21)
        job = SampleJob(str(model_directory(kind)), None, prompt, 1, 30, temperature=0.0, stop=())
        expected = oracle(kind).generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=30, min_new_tokens=30,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        assert sample(backend, job).sequences[0].tokens == expected[0, 21:].tolist()


def crowd_jobs(name: str) -> dict[str, SampleJob]:
    """Many lengths, adapters, settings; some prompts share a start, some are equal."""
    jobs: dict[str, SampleJob] = {}
    common = prompt_of(0, 40)
    for index in range(60):
        weights = ("a", "b", None)[index % 3]
        length = (1, 3, 15, 16, 17, 33, 64, 370, 400)[index % 9]
        prompt = (common + prompt_of(index, length))[: max(length, 1)]
        if index % 4 == 0:
            prompt = prompt_of(index // 8, length)
        jobs[f"job{index}"] = SampleJob(
            name, weights, prompt, 1 + index % 3, 5 + index % 40, seed=index, stop=(),
            temperature=(1.0, 0.7, 0.0, 1.3)[index % 4],
            top_k=(-1, -1, 10)[index % 3],
            top_p=(1.0, 0.9)[index % 2],
        )  # fmt: skip
    return jobs


def same(left: SampleResult, right: SampleResult) -> bool:
    """Equal tokens; equal log-probabilities to the bit where the CPU's kernels allow it."""
    exact = torch.backends.cpu.get_cpu_capability() == "AVX512"
    for one, two in zip(left.sequences, right.sequences, strict=True):
        if one.tokens != two.tokens or (exact and one.logprobs != two.logprobs):
            return False
        if not np.allclose(one.logprobs, two.logprobs, atol=1e-5, rtol=0):
            return False
    return True


def test_a_crowd_changes_nothing(trained, model_directory):
    jobs = crowd_jobs(str(model_directory("qwen3")))
    alone: dict[str, SampleResult] = {}
    for name, job in jobs.items():
        alone[name] = sample(trained, job)
    crowd = TorchBackend(device="cpu", dtype="float32")
    crowd.frozen, crowd.adapters = trained.frozen, trained.adapters
    together: dict[str, SampleResult] = {}
    waiting = list(jobs.items())
    while waiting or crowd.sampling:  # three join at every step
        for _ in range(3):
            if waiting:
                crowd.add(*waiting.pop())
        for done in crowd.step():
            assert isinstance(done.result, SampleResult)
            together[done.job_id] = done.result
    for name in jobs:
        assert same(together[name], alone[name]), name


def test_a_repeated_prompt_is_found_and_gives_the_same(trained, model_directory):
    name = str(model_directory("qwen3"))
    prompt = prompt_of(5, 100)
    first = sample(trained, SampleJob(name, "a", prompt, 2, 20, seed=1, stop=()))
    again = sample(trained, SampleJob(name, "a", prompt, 2, 20, seed=1, stop=()))
    assert (first.cached_tokens, again.cached_tokens) == (0, 96)
    assert same(again, first)
    # a conversation that goes on finds what was sampled, too
    longer = (*prompt, *first.sequences[0].tokens, 5, 6, 7)
    assert sample(trained, SampleJob(name, "a", longer, 1, 2, stop=())).cached_tokens == 112
    # other weights never see these blocks
    assert sample(trained, SampleJob(name, "b", prompt, 1, 2, stop=())).cached_tokens == 0
    assert sample(trained, SampleJob(name, None, prompt, 1, 2, stop=())).cached_tokens == 0


def test_new_values_under_an_old_name_find_no_old_blocks(trained, model_directory):
    name = str(model_directory("qwen3"))
    job = SampleJob(name, "a", prompt_of(5, 100), 1, 20, seed=1, stop=())
    old = sample(trained, job)
    trained.freeze("b", "a")  # the name now means other weights
    new = sample(trained, job)
    assert new.cached_tokens == 0
    assert new.sequences != old.sequences
    trained.freeze("b", "fresh")
    assert same(new, sample(trained, replace(job, weights="fresh")))


def test_a_small_cache_evicts_waits_and_answers_all(trained, model_directory):
    name = str(model_directory("qwen3"))
    jobs = crowd_jobs(name)
    expected = {key: sample(trained, job) for key, job in jobs.items()}
    base, _ = trained.bases[name]
    trained.bases[name] = (base, Sampler(base, 512, lambda tokens: ""))
    for key, job in jobs.items():
        trained.add(key, job)
    results = drain(trained)
    pool = trained.bases[name][1].cache.pool
    assert all(same(results[key], expected[key]) for key in jobs)
    assert pool.available == pool.size - 1
    assert not pool.references
    with pytest.raises(RequestError, match="lower max_tokens"):
        trained.add("big", SampleJob(name, None, (3,) * 500, 1, 1000))


def test_cancel_frees_everything(trained, model_directory):
    name = str(model_directory("qwen3"))
    for index in range(5):
        trained.add(f"j{index}", SampleJob(name, "a", prompt_of(index, 20), 2, 40, stop=()))
    trained.step()
    for index in range(4):
        trained.cancel(f"j{index}")
    results = drain(trained)
    pool = trained.bases[name][1].cache.pool
    assert set(results) == {"j4"}
    assert not pool.references


def test_weights_that_are_not_finite_fail_alone(trained, model_directory):
    name = str(model_directory("qwen3"))
    good = SampleJob(name, "a", prompt_of(1, 20), 2, 30, seed=3, stop=())
    expected = sample(trained, good)
    trained.adapters["b"].values.fill_(float("nan"))
    trained.freeze("b", "broken")
    trained.add("good", good)
    trained.add("bad", SampleJob(name, "broken", prompt_of(2, 20), 3, 30))
    done = {}
    while trained.sampling:
        done |= {one.job_id: one.result for one in trained.step()}
    assert "not finite" in str(done["bad"])
    assert isinstance(done["bad"], RequestError)
    assert same(done["good"], expected)
    # and what the broken one left in the cache harms nobody
    assert same(sample(trained, good), expected)
    assert not trained.bases[name][1].cache.pool.references


def test_a_failed_prompt_gives_its_blocks_back(trained, model_directory, monkeypatch):
    name = str(model_directory("qwen3"))
    expected = sample(trained, SampleJob(name, "a", prompt_of(1, 20), 2, 5, seed=3))
    sampler = trained.bases[name][1]
    trained.add("lost", SampleJob(name, "a", prompt_of(5, 40), 3, 5))
    with monkeypatch.context() as broken:
        broken.setattr("tinsmith.service.engine.sampler.run_decoder", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trained.step()
    assert not sampler.cache.pool.references
    assert same(sample(trained, SampleJob(name, "a", prompt_of(1, 20), 2, 5, seed=3)), expected)


def test_stop_strings_need_a_tokenizer(trained, model_directory):
    job = SampleJob(str(model_directory("qwen3")), None, (3, 4), 1, 5, stop=("x",))
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        trained.add("text", job)
    assert not trained.sampling


def test_stops(trained, model_directory):
    name = str(model_directory("qwen3"))
    prompt = prompt_of(1, 12)
    free = sample(trained, SampleJob(name, "a", prompt, 1, 40, seed=4, stop=())).sequences[0]
    assert (len(free.tokens), free.stop_reason) == (40, "length")
    stop = free.tokens[10]
    cut = sample(trained, SampleJob(name, "a", prompt, 1, 40, seed=4, stop=(stop,))).sequences[0]
    assert cut.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert cut.stop_reason == "stop"
    # a stop string: the tokens that complete it are part of the answer
    sampler = trained.bases[name][1]
    sampler.decode_text = lambda tokens: "".join(chr(token + 33) for token in tokens)
    text = sampler.decode_text(free.tokens[8:11])
    by_text = sample(trained, SampleJob(name, "a", prompt, 1, 40, seed=4, stop=(text,))).sequences[
        0
    ]
    assert sampler.decode_text(by_text.tokens).endswith(text)
    assert by_text.stop_reason == "stop"
    # EOS stops by default and beside other stops, but not for an empty list
    eos = SampleJob(name, "a", prompt, 60, 30, seed=5)
    ended = sample(trained, eos).sequences
    beside = sample(trained, replace(eos, stop=(95,))).sequences
    never = sample(trained, replace(eos, stop=())).sequences
    assert any(s.tokens[-1] == 1 and s.stop_reason == "stop" for s in ended)
    for one, two, three in zip(ended, beside, never, strict=True):
        assert three.tokens[: len(one.tokens)] == one.tokens
        assert two.tokens == one.tokens or 95 in one.tokens
        assert len(three.tokens) == 30


def test_samples_differ_and_seeds_repeat(trained, model_directory):
    name = str(model_directory("qwen3"))
    job = SampleJob(name, "a", prompt_of(2, 9), 8, 12, seed=7, stop=(), temperature=2.0)
    first, again = sample(trained, job), sample(trained, job)
    assert first.sequences == again.sequences
    assert len({tuple(s.tokens) for s in first.sequences}) == 8


@pytest.mark.parametrize(
    ("top_k", "top_p", "allowed"), [(-1, 1.0, 5), (2, 1.0, 2), (-1, 0.55, 2), (3, 0.95, 3)]
)
def test_choice_follows_the_distribution(top_k, top_p, allowed):
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.07, 0.03])
    count = 20000
    logits = probabilities.log().repeat(count, 1)
    choices = Choices.of([(1.0, top_k, top_p)] * count, 5, torch.device("cpu"))
    keys = np.array([row_key(11, i) for i in range(count)], dtype=np.uint64)
    tokens, logprobs = choose(logits, choices, uniforms(keys, np.zeros(count, np.uint64)))
    counts = Counter(tokens.tolist())
    assert set(counts) == set(range(allowed))
    kept = probabilities[:allowed] / probabilities[:allowed].sum()
    for token in range(allowed):
        spread = 5 * math.sqrt(float(kept[token]) / count)
        assert abs(counts[token] / count - float(kept[token])) < spread
    # the reported log-probability is of the whole distribution
    torch.testing.assert_close(logprobs, probabilities.log()[tokens])


def test_wide_vocabulary_reaches_rare_tokens():
    """A token of probability 2e-6 among 150,000 is drawn as often as it should be."""
    vocab, rows = 150_001, 64
    logits = torch.zeros(rows, vocab)
    choices = Choices.of([(1.0, -1, 1.0)] * rows, vocab, torch.device("cpu"))
    random = (np.arange(rows) + 0.5) / rows
    tokens, _ = choose(logits, choices, random)
    expected = np.floor(random * vocab)
    assert np.abs(tokens.numpy() - expected).max() <= 1


def test_decoding_goes_on_between_micro_batches(trained, model_directory, monkeypatch):
    monkeypatch.setattr(training, "_token_budget", lambda base: 16)
    name = str(model_directory("qwen3"))
    job = SampleJob(name, "a", prompt_of(2, 9), 1, 30, seed=7, stop=())
    expected = sample(trained, job)
    trained.add("beside", job)
    finished = []
    parts = trained.run_pass("a", make_items(0, [12] * 40), LossSpec("ppo", {}), backward=True)
    for _ in parts:
        finished += trained.step()
    assert [done.job_id for done in finished] == ["beside"]
    assert same(finished[0].result, expected)
