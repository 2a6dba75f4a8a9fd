"""Every loss and every table of log-probabilities on a CUDA device against the same on the CPU.

Plain unittest, as in test_cuda.py: `python -m unittest tests.gpu.test_losses_and_scores`.
"""

from __future__ import annotations

import tempfile
import unittest

import numpy as np
import torch
import transformers

from tests.gpu.test_cuda import VOCAB, items, sample
from tinsmith.service.engine.backend import LoraSpec, LossSpec, PassResult, SampleJob, TrainItem
from tinsmith.service.engine.torch_backend import TorchBackend

CLIP = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
LOSSES = (
    LossSpec("cross_entropy", {}),
    LossSpec("importance_sampling", {}),
    LossSpec("ppo", {}),
    LossSpec("cispo", {}),
    LossSpec("dro", {"beta": 0.05}),
    LossSpec("gspo", CLIP),
)


def wide(seed: int, lengths: list[int]) -> list[TrainItem]:
    """Several targets a token, of another number in each datum."""
    random = np.random.default_rng(seed)
    out = []
    for columns, item in enumerate(items(seed, lengths), start=1):
        shape = (len(item.tokens), columns)
        weights = random.normal(size=shape).astype(np.float32)
        targets = random.integers(0, VOCAB, shape)
        out.append(TrainItem(item.tokens, {"target_tokens": targets, "weights": weights}))
    return out


@unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")
class LossesAndScores(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        torch.manual_seed(0)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        config = transformers.Qwen3Config(
            vocab_size=VOCAB, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True,
            initializer_range=0.1, max_position_embeddings=2048,
        )  # fmt: skip
        transformers.Qwen3ForCausalLM(config).save_pretrained(folder.name)
        cls.name = folder.name
        cls.engines = []
        for device in ("cpu", "cuda"):
            engine = TorchBackend(device=device, dtype="float32")
            engine.create("m", LoraSpec(cls.name, 4, seed=1))
            values = engine.adapters["m"].values
            values.copy_(torch.randn(values.shape, generator=torch.Generator().manual_seed(2)) / 9)
            cls.engines.append(engine)

    def both(self, data: list[TrainItem], loss: LossSpec) -> list[tuple[PassResult, torch.Tensor]]:
        out = []
        for engine in self.engines:
            *_, result = engine.run_pass("m", data, loss, backward=True)
            assert isinstance(result, PassResult)
            out.append((result, engine.adapters["m"].gradient.cpu().clone()))
            engine.adapters["m"].gradient.zero_()
        return out

    def compare(self, data: list[TrainItem], loss: LossSpec) -> None:
        (one, gradient), (two, other) = self.both(data, loss)
        for left, right in zip(one.outputs, two.outputs, strict=True):
            assert left["logprobs"].shape == right["logprobs"].shape
            np.testing.assert_allclose(left["logprobs"], right["logprobs"], atol=5e-3)
        size = float(gradient.norm())
        assert size > 0.1
        assert float((gradient - other).norm()) < 0.01 * size, loss
        scale = sum(np.abs(output["logprobs"]).sum() for output in one.outputs)
        difference = abs(one.metrics["loss:sum"] - two.metrics["loss:sum"])
        assert difference < 2e-3 * scale, loss

    def test_losses(self) -> None:
        for loss in LOSSES:
            data = items(3, [40, 7, 300, 1])
            *_, result = self.engines[0].run_pass("m", data, LOSSES[0], backward=False)
            assert isinstance(result, PassResult)
            for item, output in zip(data, result.outputs, strict=True):
                length = len(item.tokens)
                # ratios well inside or outside the bounds: rounding must not decide
                item.inputs["logprobs"][:] = output["logprobs"] + np.resize([0.5, 0.02], length)
                item.inputs["sequence_ratio_mask"] = np.ones(length, np.float32)
            self.compare(data, loss)

    def test_several_targets_a_token(self) -> None:
        self.compare(wide(4, [40, 7, 300, 1]), LOSSES[0])

    def test_scores(self) -> None:
        for length in (1, 2, 150):
            prompt = tuple(np.random.default_rng(length).integers(2, VOCAB, length).tolist())
            targets = np.random.default_rng(5).integers(-1, VOCAB, (length - 1, 3))
            job = SampleJob(
                self.name, None, prompt, 2, 5, temperature=0.0, stop=(), seed=3,
                prompt_logprobs=True, topk_prompt_logprobs=3, topk_sample_logprobs=3,
                target_prompt=targets, alt_tokens=2,
            )  # fmt: skip
            one, two = (sample(engine, {"a": job})["a"] for engine in self.engines)
            np.testing.assert_allclose(one.target_prompt, two.target_prompt, atol=5e-3)
            for field in ("topk_prompt", "alt_tokens"):
                left, right = getattr(one, field).logprobs, getattr(two, field).logprobs
                np.testing.assert_allclose(left, right, atol=5e-3)
            for left, right in zip(one.sequences, two.sequences, strict=True):
                assert left.tokens == right.tokens
                np.testing.assert_allclose(left.topk.logprobs, right.topk.logprobs, atol=5e-3)


if __name__ == "__main__":
    unittest.main()
