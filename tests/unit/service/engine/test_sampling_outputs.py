"""What a sampling request can ask for beside its tokens: top-k, targets, draws, partial results."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.unit.service.engine.test_against_transformers import backend_with, randomise
from tests.unit.service.engine.test_sampler import prompt_of
from tinsmith.errors import RequestError
from tinsmith.service.engine import vocab_loss
from tinsmith.service.engine.backend import Partial, SampleJob, SampleResult
from tinsmith.service.engine.checks import MAX_SCORED, check_sample
from tinsmith.service.engine.fake import FakeBackend
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

VOCAB = 96


def watch(backend, jobs: dict[str, SampleJob]) -> tuple[dict[str, SampleResult], list[Partial]]:
    for name, job in jobs.items():
        backend.add(name, job)
    results: dict[str, SampleResult] = {}
    partials: list[Partial] = []
    while backend.sampling:
        for told in backend.step():
            if isinstance(told, Partial):
                assert told.job_id not in results
                partials.append(told)
            else:
                assert isinstance(told.result, SampleResult), told.result
                results[told.job_id] = told.result
    return results, partials


def sample(backend, job: SampleJob) -> SampleResult:
    return watch(backend, {"only": job})[0]["only"]


@pytest.fixture
def backend() -> TorchBackend:
    return TorchBackend(device="cpu", dtype="float32")


@pytest.fixture(params=[3, 256])
def chunk(request, monkeypatch) -> None:
    """Prompts longer and shorter than a chunk of rows."""
    monkeypatch.setattr(vocab_loss, "_rows_per_chunk", lambda head: request.param)


def table_of(oracle, kind: str, tokens: tuple[int, ...]) -> np.ndarray:
    """transformers' log-softmax after each token."""
    with torch.no_grad():
        return oracle(kind)(torch.tensor([tokens])).logits[0].log_softmax(-1).numpy()


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("length", [1, 2, 37])
def test_scores_of_a_prompt_equal_transformers(length, model_directory, oracle, backend):
    prompt = prompt_of(3, length)
    targets = np.random.default_rng(1).integers(0, VOCAB, (length - 1, 4))
    targets[::2, 1] = -1
    job = SampleJob(
        str(model_directory("qwen3")), None, prompt, 2, 3, prompt_logprobs=True,
        topk_prompt_logprobs=5, target_prompt=targets, alt_tokens=3, temperature=0.5, seed=1,
    )  # fmt: skip
    result = sample(backend, job)
    table = table_of(oracle, "qwen3", prompt)[:-1]
    best = np.sort(table, axis=1)[:, ::-1][:, :5]
    assert result.prompt_logprobs is not None
    assert result.topk_prompt is not None
    assert result.alt_tokens is not None
    assert result.target_prompt is not None
    own = np.array(result.prompt_logprobs[1:], dtype=np.float32)
    np.testing.assert_allclose(own, table[range(length - 1), prompt[1:]], atol=1e-4)
    assert result.topk_prompt.tokens.shape == result.topk_prompt.logprobs.shape == (length - 1, 5)
    np.testing.assert_allclose(result.topk_prompt.logprobs, best, atol=1e-4)
    expected = np.take_along_axis(table, result.topk_prompt.tokens, 1)
    np.testing.assert_allclose(result.topk_prompt.logprobs, expected, atol=1e-4)
    named = np.where(targets < 0, 0.0, np.take_along_axis(table, np.maximum(targets, 0), 1))
    assert result.target_prompt.shape == targets.shape
    np.testing.assert_allclose(result.target_prompt, named, atol=1e-4)
    assert (result.target_prompt[targets < 0] == 0).all()
    assert result.alt_tokens.tokens.shape == (length - 1, 3)
    drawn = np.take_along_axis(table, result.alt_tokens.tokens, 1)
    np.testing.assert_allclose(result.alt_tokens.logprobs, drawn, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_top_tokens_of_samples_equal_transformers(temperature, model_directory, oracle, backend):
    prompt = prompt_of(4, 20)
    job = SampleJob(
        str(model_directory("llama-gqa")), None, prompt, 2, 8, temperature=temperature, stop=(),
        seed=3, topk_sample_logprobs=4,
    )  # fmt: skip
    for sequence in sample(backend, job).sequences:
        logits = table_of(oracle, "llama-gqa", (*prompt, *sequence.tokens))[19:-1]
        scaled = torch.from_numpy(logits / (temperature or 1.0)).log_softmax(-1).numpy()
        assert sequence.topk is not None
        assert sequence.topk.tokens.shape == (8, 4)
        best = np.sort(scaled, axis=1)[:, ::-1][:, :4]
        np.testing.assert_allclose(sequence.topk.logprobs, best, atol=1e-4)
        found = np.take_along_axis(scaled, sequence.topk.tokens, 1)
        np.testing.assert_allclose(sequence.topk.logprobs, found, atol=1e-4)
        for token, logprob, tokens, logprobs in zip(
            sequence.tokens, sequence.logprobs, sequence.topk.tokens.tolist(),
            sequence.topk.logprobs.tolist(), strict=True,
        ):  # fmt: skip
            if token in tokens:  # the very number that is reported for the token itself
                assert logprobs[tokens.index(token)] == logprob


def test_more_than_the_vocabulary_is_the_vocabulary(model_directory, backend):
    name = str(model_directory("qwen3"))
    job = SampleJob(
        name, None, (3, 4, 5), 1, 2, stop=(), topk_prompt_logprobs=500, topk_sample_logprobs=500
    )
    result = sample(backend, job)
    assert result.topk_prompt is not None
    assert result.sequences[0].topk is not None
    for topk in (result.topk_prompt, result.sequences[0].topk):
        assert topk.tokens.shape == (2, VOCAB)
        np.testing.assert_allclose(np.exp(topk.logprobs).sum(1), 1.0, atol=1e-5)


def test_what_is_asked_beside_changes_no_token_and_reads_no_cache(model_directory):
    """A request's numbers are its own: in a crowd, with other requests' questions, again and again."""
    backend = backend_with(model_directory("qwen3"))
    randomise(backend)
    backend.freeze("m", "w")
    name = str(model_directory("qwen3"))
    plain = {
        f"{i}": SampleJob(name, ("w", None)[i % 2], prompt_of(i // 4, 40), 2, 9, seed=i, stop=())
        for i in range(8)
    }
    asking = {
        key: replace(
            job, topk_sample_logprobs=1 + int(key), topk_prompt_logprobs=2, alt_tokens=2,
            target_prompt=np.full((39, 1), 7), prompt_logprobs=True, stream=int(key) % 3 == 0,
        )
        for key, job in plain.items()
    }  # fmt: skip
    expected = {key: sample(backend, job) for key, job in plain.items()}
    alone = {key: sample(backend, job) for key, job in asking.items()}
    crowd, partials = watch(backend, asking)
    assert {partial.job_id for partial in partials} == {"0", "3", "6"}
    exact = torch.backends.cpu.get_cpu_capability() == "AVX512"
    for key in plain:
        assert crowd[key].cached_tokens == alone[key].cached_tokens == 0
        assert crowd[key].prompt_logprobs is not None
        for one, two, bare in zip(
            alone[key].sequences, crowd[key].sequences, expected[key].sequences, strict=True
        ):
            assert one.tokens == two.tokens == bare.tokens
            assert one.topk is not None
            assert two.topk is not None
            assert one.topk.tokens.shape == (9, 1 + int(key))
            assert (one.topk.tokens == two.topk.tokens).all()
            if exact:
                assert one.logprobs == two.logprobs == bare.logprobs
                assert (one.topk.logprobs == two.topk.logprobs).all()
        for field in ("topk_prompt", "alt_tokens"):
            left, right = getattr(alone[key], field), getattr(crowd[key], field)
            assert (left.tokens == right.tokens).all()
            np.testing.assert_allclose(left.logprobs, right.logprobs, atol=0 if exact else 1e-5)
        left, right = alone[key].target_prompt, crowd[key].target_prompt
        assert left is not None
        np.testing.assert_allclose(left, right, atol=0 if exact else 1e-5)


def test_draws_follow_the_distribution_at_the_temperature(model_directory, oracle, backend):
    """With replacement, without top_k and top_p, each position and column by itself."""
    prompt, count = prompt_of(6, 3), 4000
    name = str(model_directory("qwen3"))
    job = SampleJob(name, None, prompt, 1, 1, temperature=0.6, top_k=1, seed=5, alt_tokens=count)
    drawn = sample(backend, job).alt_tokens
    assert drawn is not None
    table = table_of(oracle, "qwen3", prompt)[:2].astype(np.float64) / 0.6
    odds = np.exp(table - np.logaddexp.reduce(table, axis=1, keepdims=True))
    for row in range(2):
        counts = Counter(drawn.tokens[row].tolist())
        for token in range(VOCAB):
            spread = 5 * np.sqrt(odds[row, token] / count) + 2 / count
            assert abs(counts[token] / count - odds[row, token]) < spread
    same = sample(backend, job).alt_tokens
    other = sample(backend, replace(job, seed=6)).alt_tokens
    greedy = sample(backend, replace(job, temperature=0.0, alt_tokens=3)).alt_tokens
    assert same is not None
    assert other is not None
    assert greedy is not None
    assert (same.tokens == drawn.tokens).all()
    assert (other.tokens != drawn.tokens).any()
    assert (greedy.tokens == table.argmax(1)[:, None]).all()


@pytest.mark.parametrize("engine", ["torch", "fake"])
def test_partial_results_add_up_to_the_whole(engine, model_directory, backend):
    if engine == "torch":
        name, some = str(model_directory("qwen3")), backend
    else:
        some, name = FakeBackend(), EMBEDDED_MODEL
    job = SampleJob(name, None, (30, 40, 50), 3, 25, seed=2, topk_sample_logprobs=2, stream=True)
    results, partials = watch(some, {"streams": job, "silent": replace(job, stream=False)})
    assert {partial.job_id for partial in partials} == {"streams"}
    for index, sequence in enumerate(results["streams"].sequences):
        mine = [partial for partial in partials if partial.sample == index]
        assert [t for partial in mine for t in partial.tokens] == sequence.tokens
        assert [lp for partial in mine for lp in partial.logprobs] == sequence.logprobs
        assert sequence.topk is not None
        rows = np.concatenate([p.topk.tokens for p in mine if p.topk is not None])
        assert (rows == sequence.topk.tokens).all()
    silent = [sequence.tokens for sequence in results["silent"].sequences]
    assert silent == [sequence.tokens for sequence in results["streams"].sequences]


def test_a_cancelled_stream_says_no_more(model_directory, backend):
    name = str(model_directory("qwen3"))
    backend.add("gone", SampleJob(name, None, (3, 4), 2, 50, stop=(), stream=True))
    assert {type(told) for told in backend.step()} == {Partial}
    backend.cancel("gone")
    assert not backend.sampling
    assert backend.step() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topk_prompt_logprobs": -1}, "topk_prompt_logprobs must be 0 or more"),
        ({"topk_sample_logprobs": -1}, "topk_sample_logprobs must be 0 or more"),
        ({"alt_tokens": -2}, "prompt_alt_tokens_k must be 0 or more"),
        ({"alt_tokens": MAX_SCORED // 2 + 1}, "ask for fewer"),
        ({"topk_prompt_logprobs": MAX_SCORED}, None),  # there are no more than the vocabulary's
        ({"topk_sample_logprobs": 90, "num_samples": 10_000, "max_tokens": 20}, "ask for fewer"),
        ({"target_prompt": np.zeros((3, 1), int)}, "has 3 rows, expected 2"),
        ({"target_prompt": np.full((2, 1), -1)}, "names no token"),
        ({"target_prompt": np.zeros((2, 0), int)}, "names no token"),
        ({"target_prompt": np.array([[1], [96]])}, "token id 96 is outside the vocabulary"),
        ({"target_prompt": np.array([[1], [-2]])}, "-1 leaves a cell empty"),
        ({"target_prompt": np.array([[1], [-1]])}, None),
    ],
)
def test_refusals(change, words, model_directory, backend):
    info = backend.describe(str(model_directory("qwen3")))
    job = replace(SampleJob(info.name, None, (3, 4, 5), 1, 4), **change)
    if words is None:
        check_sample(job, info)
        return
    with pytest.raises(RequestError, match=words):
        check_sample(job, info)
