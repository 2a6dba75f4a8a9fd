"""Log-probabilities beside the sampled tokens, as the unmodified SDK asks for and reads them."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
import tinker
import torch
import transformers

import tinsmith
from tests.contract.conftest import BackendFactory
from tests.contract.data import TOKENS
from tinsmith.service.engine.fake import FakeBackend
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

ROWS = len(TOKENS) - 1
PROMPT = tinker.ModelInput.from_ints(TOKENS)


@pytest.fixture(scope="module", params=["fake", "torch"])
def backend_factory(request: pytest.FixtureRequest, tokenizer_directory: Path) -> BackendFactory:
    if request.param == "fake":
        return lambda: FakeBackend(directory=tokenizer_directory)
    return lambda: TorchBackend(device="cpu", dtype="float32", threads=1)


@pytest.fixture(scope="module")
def sampler(client: tinker.ServiceClient) -> tinker.SamplingClient:
    return client.create_sampling_client(base_model=EMBEDDED_MODEL)


@pytest.fixture(scope="module")
def table(server) -> np.ndarray:
    """Log-probabilities [position, vocabulary] after each prompt token, by another way."""
    if isinstance(server.backend, FakeBackend):
        scores = torch.from_numpy(server.backend._base[TOKENS])
        return scores.log_softmax(-1).numpy()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        Path(tinsmith.__file__).parent / "tiny", dtype=torch.float32
    )
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].log_softmax(-1).numpy()


def ask(sampler: tinker.SamplingClient, **asked) -> tinker.SampleResponse:
    params = tinker.SamplingParams(max_tokens=3, seed=1, temperature=asked.pop("temperature", 1.0))
    return sampler.sample(asked.pop("prompt", PROMPT), 2, params, **asked).result()


def test_top_tokens_of_the_prompt(sampler, table) -> None:
    response = ask(sampler, topk_prompt_logprobs=4)
    assert response.prompt_logprobs is None
    rows = response.topk_prompt_logprobs
    assert rows is not None
    assert rows[0] is None
    assert len(rows) == len(TOKENS)
    for position, row in enumerate(rows[1:]):
        best = np.argsort(-table[position])[:4]
        assert row is not None
        assert [token for token, _ in row] == best.tolist()
        found = [logprob for _, logprob in row]
        np.testing.assert_allclose(found, table[position, best], atol=1e-4)


def test_only_the_last_prompt_tokens(sampler, table) -> None:
    response = ask(
        sampler,
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
        prompt_logprobs_last_n=3,
        prompt_alt_tokens_k=2,
        target_prompt_logprobs=tinker.TensorData.from_numpy(np.full((ROWS, 1), 65)),
    )
    unscored = len(TOKENS) - 3
    assert response.prompt_logprobs is not None
    assert response.topk_prompt_logprobs is not None
    assert response.prompt_logprobs[:unscored] == [None] * unscored
    assert response.topk_prompt_logprobs[:unscored] == [None] * unscored
    own = table[range(ROWS), TOKENS[1:]]
    np.testing.assert_allclose(response.prompt_logprobs[unscored:], own[-3:], atol=1e-4)
    best = [row[0][1] for row in response.topk_prompt_logprobs[unscored:] if row]
    np.testing.assert_allclose(best, table[-4:-1].max(1), atol=1e-4)
    # these two are of the whole prompt all the same
    assert response.target_prompt_logprobs is not None
    np.testing.assert_allclose(
        response.target_prompt_logprobs.to_numpy()[:, 0], table[:ROWS, 65], atol=1e-4
    )
    assert response.prompt_alt_tokens is not None
    assert response.prompt_alt_tokens.tokens.shape == [ROWS, 2]
    assert len(sampler.compute_logprobs(PROMPT, 2).result()) == len(TOKENS)


@pytest.mark.parametrize("sparse", [False, True])
def test_chosen_tokens_of_the_prompt(sampler, table, sparse) -> None:
    ids = torch.full((ROWS, 5), -1, dtype=torch.int64)
    ids[0, 0], ids[3, 4], ids[3, 1], ids[6, 2] = 0, 65, 0, 100
    tensor = tinker.TensorData.from_torch(ids)
    if sparse:
        tensor = tinker.TensorData.from_torch_sparse(ids, pad_value=-1)
        assert tensor.sparse_crow_indices is not None
    found = ask(sampler, target_prompt_logprobs=tensor).target_prompt_logprobs
    assert found is not None
    assert (found.dtype, found.shape) == ("float32", [ROWS, 5])
    assert found.sparse_crow_indices == tensor.sparse_crow_indices
    assert found.sparse_col_indices == tensor.sparse_col_indices
    if sparse:
        assert len(found.data) == 4
    wanted = np.where(ids < 0, 0.0, np.take_along_axis(table[:ROWS], ids.clamp(min=0).numpy(), 1))
    np.testing.assert_allclose(found.to_numpy(), wanted, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_top_tokens_of_the_samples(sampler, table, temperature) -> None:
    response = ask(sampler, topk_sample_logprobs=3, temperature=temperature)
    scaled = torch.from_numpy(table[-1] / temperature).log_softmax(-1).numpy()
    best = np.argsort(-scaled)[:3]
    for sequence in response.sequences:
        rows = sequence.topk_logprobs
        assert rows is not None
        assert len(rows) == len(sequence.tokens)
        assert rows[0] is not None
        assert [token for token, _ in rows[0]] == best.tolist()
        np.testing.assert_allclose([lp for _, lp in rows[0]], scaled[best], atol=1e-4)
        assert sequence.logprobs is not None
        for token, logprob, row in zip(sequence.tokens, sequence.logprobs, rows, strict=True):
            assert dict(row or []).get(token, logprob) == pytest.approx(logprob, abs=1e-5)


def test_alternatives_to_the_prompts_tokens(sampler, table) -> None:
    response = ask(sampler, prompt_alt_tokens_k=3)
    assert response.prompt_alt_tokens is not None
    tokens = response.prompt_alt_tokens.tokens.to_numpy()
    assert tokens.shape == (ROWS, 3)
    assert tokens.dtype == np.int64
    expected = np.take_along_axis(table[:ROWS], tokens, 1)
    found = response.prompt_alt_tokens.logprobs.to_numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_prompt_of_one_token_has_nothing_to_score(sampler) -> None:
    response = ask(
        sampler,
        prompt=tinker.ModelInput.from_ints(TOKENS[:1]),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
        prompt_alt_tokens_k=2,
    )
    assert response.prompt_logprobs == [None]
    assert response.topk_prompt_logprobs == [None]
    assert response.prompt_alt_tokens is not None
    assert response.prompt_alt_tokens.tokens.shape == [0, 2]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"topk_prompt_logprobs": -1}, "must be 0 or more"),
        ({"include_prompt_logprobs": True, "prompt_logprobs_last_n": 8}, "7 that can be scored"),
        ({"target_prompt_logprobs": np.zeros((3, 2), int)}, "has 3 rows, expected 7"),
        ({"target_prompt_logprobs": np.full((ROWS, 2), -1)}, "names no token"),
        ({"target_prompt_logprobs": np.full((ROWS, 2), 10**6)}, "outside the vocabulary"),
    ],
)
def test_refusals(sampler, asked, words) -> None:
    table = asked.get("target_prompt_logprobs")
    if table is not None:
        asked = {"target_prompt_logprobs": tinker.TensorData.from_numpy(table)}
    with pytest.raises(tinker.APIStatusError) as caught:
        ask(sampler, **asked)
    assert caught.value.status_code == 400
    assert words in caught.value.response.json()["detail"]


@pytest.mark.parametrize(
    ("shape", "crow", "col"),
    [
        ([ROWS, 10**9], [0] * ROWS + [1], [0]),  # would fill the memory
        ([ROWS, 2], [0] * ROWS + [1], [2]),
        ([ROWS, 2], [0, 1], [0]),
        ([-1, -1], [0], []),
    ],
)
def test_tables_that_are_none(server, sampler, shape, crow, col) -> None:
    body = {
        "sampling_session_id": sampler._sampling_session_id,
        "seq_id": 10_000 + len(crow) + shape[1] % 97,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]},
        "target_prompt_logprobs": {
            "data": [5],
            "dtype": "int64",
            "shape": shape,
            "sparse_crow_indices": crow,
            "sparse_col_indices": col,
        },
    }
    answer = httpx.post(f"{server.url}/api/v1/asample", json=body)
    assert answer.status_code == 400
    assert "target_prompt_logprobs" in answer.json()["detail"]
