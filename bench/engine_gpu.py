"""The engine on a GPU beside plain transformers, in tokens a second of wall time.

    python bench/engine_gpu.py            # a random model of Qwen3-0.6B's shape, bfloat16

Needs torch with CUDA and transformers; neither FastAPI nor PEFT. The reference trains all of the
same LoRA-free model's activations (forward and backward of a frozen model with trainable inputs),
which is what PEFT adds adapters to, and samples with `generate`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
import transformers

from tinsmith.service.engine.backend import LoraSpec, LossSpec, SampleJob, TrainItem
from tinsmith.service.engine.torch_backend import TorchBackend


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    call()
    times: list[float] = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        eos_token_id=0,
    )
    reference = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        reference.to("cuda")
        backend = TorchBackend(device="cuda", dtype="bfloat16")
        backend.create("m", LoraSpec(folder, rank=32, seed=0))
        backend.freeze("m", "w")
        report: dict[str, float] = {}

        sequences = random.integers(0, 150000, (16, 1025))
        items = [TrainItem(row[:-1], {"target_tokens": row[1:]}) for row in sequences]

        def ours() -> None:
            for _ in backend.run_pass("m", items, LossSpec("cross_entropy", {}), backward=True):
                pass

        batch = torch.from_numpy(sequences).cuda()
        for parameter in reference.parameters():
            parameter.requires_grad_(False)

        def theirs() -> None:
            for part in batch.split(4):
                inputs = reference.get_input_embeddings()(part[:, :-1]).requires_grad_()
                logits = reference(inputs_embeds=inputs).logits
                torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1).float(), part[:, 1:].flatten(), reduction="sum"
                ).backward()

        tokens = 16 * 1024
        report["train_tokens_s"] = tokens / seconds(ours)
        report["train_reference_tokens_s"] = tokens / seconds(theirs)

        prompts = random.integers(1, 150000, (64, 256))
        count = 0

        def sample(rows: int) -> None:
            nonlocal count
            for prompt in prompts[:rows]:
                count += 1
                job = SampleJob(folder, "w", tuple(prompt.tolist()), 4, 64, stop=(), seed=count)
                backend.add(str(count), job)
            while backend.sampling:
                backend.step()

        def generate(rows: int) -> None:
            inputs = torch.from_numpy(prompts[:rows]).cuda().repeat_interleave(4, 0)
            with torch.no_grad():
                reference.generate(
                    inputs, do_sample=True, max_new_tokens=64, min_new_tokens=64, top_k=0
                )

        reference.generation_config.pad_token_id = 0
        for rows in (1, 8, 64):
            tokens = rows * 4 * 64
            report[f"sample_{rows * 4}_tokens_s"] = tokens / seconds(lambda n=rows: sample(n), 2)
            report[f"generate_{rows * 4}_tokens_s"] = tokens / seconds(
                lambda n=rows: generate(n), 2
            )
    print(json.dumps({key: round(value, 1) for key, value in report.items()}, indent=2))


if __name__ == "__main__":
    main()
