"""The engine on a CUDA device against itself on the CPU and against transformers.

Plain unittest, so that it also runs where pytest is not installed: `python -m unittest tests.gpu.test_cuda`.
"""

from __future__ import annotations

import pathlib
import tempfile
import unittest

import numpy as np
import torch
import transformers

from tinsmith.service.engine.backend import (
    AdamSpec,
    LoraSpec,
    LossSpec,
    PassResult,
    SampleJob,
    SampleResult,
    TrainItem,
)
from tinsmith.service.engine.torch_backend import TorchBackend

VOCAB = 1000


def items(seed: int, lengths: list[int]) -> list[TrainItem]:
    random = np.random.default_rng(seed)
    out = []
    for length in lengths:
        tokens = random.integers(0, VOCAB, length + 1)
        inputs = {
            "target_tokens": tokens[1:],
            "logprobs": random.normal(-7, 0.2, length).astype(np.float32),
            "advantages": random.normal(size=length).astype(np.float32),
        }
        out.append(TrainItem(tokens[:-1], inputs))
    return out


def run_pass(backend: TorchBackend, data: list[TrainItem], backward: bool = True) -> PassResult:
    loss = LossSpec("ppo", {"clip_low_threshold": 0.0, "clip_high_threshold": 1e9})
    *_, result = backend.run_pass("m", data, loss, backward=backward)
    assert isinstance(result, PassResult)
    return result


def sample(backend: TorchBackend, jobs: dict[str, SampleJob]) -> dict[str, SampleResult]:
    for name, job in jobs.items():
        backend.add(name, job)
    results: dict[str, SampleResult] = {}
    while backend.sampling:
        for done in backend.step():
            assert isinstance(done.result, SampleResult), done.result
            results[done.job_id] = done.result
    return results


@unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")
class CudaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        torch.manual_seed(0)
        config = transformers.Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=32,
            tie_word_embeddings=True,
            initializer_range=0.1,
        )
        cls.oracle = transformers.Qwen3ForCausalLM(config).eval()
        cls.folder = tempfile.TemporaryDirectory()
        cls.oracle.save_pretrained(cls.folder.name)

    def backend(self, device: str, dtype: str) -> TorchBackend:
        backend = TorchBackend(device=device, dtype=dtype)
        backend.create("m", LoraSpec(self.folder.name, rank=8, seed=1))
        values = backend.adapters["m"].values
        generator = torch.Generator().manual_seed(3)
        values.copy_(torch.randn(values.shape, generator=generator) * 0.05)
        backend.freeze("m", "w")
        return backend

    def test_float32_equals_the_cpu(self) -> None:
        data = items(0, [50, 7, 300, 7, 1])
        cpu, cuda = self.backend("cpu", "float32"), self.backend("cuda", "float32")
        left, right = run_pass(cpu, data), run_pass(cuda, data)
        for one, two in zip(left.outputs, right.outputs, strict=True):
            np.testing.assert_allclose(one["logprobs"], two["logprobs"], atol=1e-3)
        gradients = [b.adapters["m"].gradient.cpu() for b in (cpu, cuda)]
        assert float(torch.cosine_similarity(*gradients, dim=0)) > 0.99999
        for backend in (cpu, cuda):
            backend.optim_step("m", AdamSpec(learning_rate=1e-3))
        values = [b.adapters["m"].values.cpu() for b in (cpu, cuda)]
        torch.testing.assert_close(*values, atol=1e-4, rtol=1e-3)

    def test_a_state_goes_out_and_comes_back(self) -> None:
        backend = self.backend("cuda", "bfloat16")
        data = items(0, [50, 7, 300])
        run_pass(backend, data)
        backend.optim_step("m", AdamSpec(learning_rate=1e-2))
        run_pass(backend, data)  # a gradient is part of the state
        file = pathlib.Path(self.folder.name) / "m.state"
        write = backend.capture("m")
        before = backend.adapters["m"]
        kept = [x.clone() for x in (before.values, before.gradient, before.moment1, before.moment2)]
        backend.optim_step("m", AdamSpec(learning_rate=1e-2))  # what was taken stays as it was
        write(file)
        backend.check(file)
        backend.drop("m")
        backend.restore("m", before.spec, file)
        after = backend.adapters["m"]
        for one, two in zip(
            kept, (after.values, after.gradient, after.moment1, after.moment2), strict=True
        ):
            assert two.device.type == "cuda"
            assert torch.equal(one, two)
        assert after.steps == 1

    def test_bfloat16_is_as_good_as_transformers(self) -> None:
        tokens = np.random.default_rng(5).integers(0, VOCAB, 201)
        item = TrainItem(tokens[:-1], {"target_tokens": tokens[1:]})
        backend = TorchBackend(device="cuda", dtype="bfloat16")
        backend.create("m", LoraSpec(self.folder.name, rank=8, seed=1))  # B = 0: the base model
        loss = LossSpec("cross_entropy", {})
        *_, result = backend.run_pass("m", [item], loss, backward=False)
        assert isinstance(result, PassResult)
        batch = torch.from_numpy(tokens[None, :-1])

        def logprobs(model: torch.nn.Module, device: str) -> np.ndarray:
            with torch.no_grad():
                logits = model(batch.to(device)).logits[0].float().cpu()
            return logits.log_softmax(-1)[range(200), tokens[1:]].numpy()

        exact = logprobs(self.oracle, "cpu")
        theirs = transformers.Qwen3ForCausalLM.from_pretrained(self.folder.name)
        rough = logprobs(theirs.to("cuda", torch.bfloat16), "cuda")
        ours = np.abs(result.outputs[0]["logprobs"] - exact).mean()
        assert ours < 1.5 * np.abs(rough - exact).mean() + 1e-3

    def test_sampling_equals_training_alone_and_in_a_crowd(self) -> None:
        backend = self.backend("cuda", "float32")
        random = np.random.default_rng(1)
        jobs = {}
        for index in range(40):
            prompt = tuple(random.integers(2, VOCAB, 1 + index * 13).tolist())
            weights = "w" if index % 2 else None
            job = SampleJob(self.folder.name, weights, prompt, 2, 30, seed=index, stop=())
            jobs[f"j{index}"] = job
        crowd = sample(backend, jobs)
        for name in ("j1", "j20", "j39"):
            alone = sample(backend, {name: jobs[name]})[name]
            together = crowd[name].sequences
            assert [s.tokens for s in alone.sequences] == [s.tokens for s in together]
        prompt = jobs["j39"].prompt
        for sequence in crowd["j39"].sequences:
            tokens = np.array([*prompt, *sequence.tokens])
            item = TrainItem(tokens[:-1], {"target_tokens": tokens[1:]})
            *_, result = backend.run_pass(
                "m", [item], LossSpec("cross_entropy", {}), backward=False
            )
            assert isinstance(result, PassResult)
            expected = result.outputs[0]["logprobs"][len(prompt) - 1 :]
            np.testing.assert_allclose(sequence.logprobs, expected, atol=2e-4)


if __name__ == "__main__":
    unittest.main()
