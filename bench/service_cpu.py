"""The service on a CPU, over HTTP with the SDK, beside plain transformers + PEFT in the same run.

    python bench/service_cpu.py [--json FILE]

Costs are CPU-seconds of the server process (so the client's own work does not count) against
CPU-seconds of this process for the reference, one thread each. The model is a random Qwen3: hidden 256,
4 layers, 4 heads / 2 key-value heads, vocabulary 4096, float32, LoRA rank 8 on every linear layer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TINKER_TELEMETRY", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import peft
import psutil
import tinker
import torch
import transformers

VOCAB, RANK, STREAM_TOKENS, PROMPT_TOKENS, LONG_PROMPT = 4096, 8, 64, 64, 1024
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]


@dataclass(frozen=True)
class Line:
    """One row of the report."""

    name: str
    ours: float
    reference: float
    unit: str
    ratio: float
    target: str
    met: bool


def make_model(directory: str) -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(directory)


@contextmanager
def server(directory: str) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "tinsmith", "serve", "--port", "0", "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--directory", directory], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"http://[\d.]+:\d+", line):
                yield found[0], psutil.Process(process.pid)
                break
        else:
            raise SystemExit("the service did not start")
    finally:
        process.terminate()
        process.wait()


class Ours:
    """The service through the unmodified SDK."""

    def __init__(self, url: str, process: psutil.Process, model: str) -> None:
        self.process = process
        service = tinker.ServiceClient(base_url=url, api_key="tml-local")
        self.training = service.create_lora_training_client(base_model=model, rank=RANK, seed=0)
        self.sampler = self.training.save_weights_and_get_sampling_client()

    def cpu(self, call: Callable[[], object]) -> float:
        def used() -> float:
            times = self.process.cpu_times()
            return times.user + times.system

        before = used()
        call()
        return used() - before

    def forward_backward(self, rows: np.ndarray) -> None:
        data = [
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(row[:-1].tolist()),
                loss_fn_inputs={
                    "target_tokens": tinker.TensorData.from_numpy(row[1:]),
                    "weights": tinker.TensorData.from_numpy(np.ones(len(row) - 1, np.float32)),
                },
            )
            for row in rows
        ]
        self.training.forward_backward(data, "cross_entropy").result()

    def sample(self, prompts: np.ndarray, samples: int, tokens: int) -> None:
        params = tinker.SamplingParams(max_tokens=tokens, temperature=1.0, stop=[])
        futures = [
            self.sampler.sample(
                tinker.ModelInput.from_ints(prompt.tolist()),
                num_samples=samples,
                sampling_params=params,
            )
            for prompt in prompts
        ]
        for future in futures:
            assert all(len(s.tokens) == tokens for s in future.result().sequences)


class Reference:
    """transformers + PEFT in this process."""

    def __init__(self, model: str) -> None:
        torch.set_num_threads(1)
        base = transformers.Qwen3ForCausalLM.from_pretrained(model)
        lora = peft.LoraConfig(r=RANK, lora_alpha=32, target_modules=MODULES, task_type="CAUSAL_LM")
        self.model = peft.get_peft_model(base, lora)

    @staticmethod
    def cpu(call: Callable[[], object]) -> float:
        before = time.process_time()
        call()
        return time.process_time() - before

    def forward_backward(self, rows: np.ndarray) -> None:
        batch = torch.from_numpy(rows)
        logits = self.model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"
        )
        loss.backward()

    @torch.no_grad()
    def sample(self, prompts: np.ndarray, samples: int, tokens: int) -> None:
        self.model.generate(
            input_ids=torch.from_numpy(prompts),
            attention_mask=torch.ones(prompts.shape, dtype=torch.int64),
            do_sample=True,
            top_k=0,
            num_return_sequences=samples,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )


ROUNDS = 10


def cost(
    cpu: Callable[[Callable[[], object]], float], call: Callable[[], object], calls: int
) -> float:
    """CPU-seconds of one call; several at a time (as many on both sides), as the clock ticks in hundredths."""
    return cpu(lambda: [call() for _ in range(calls)]) / calls


def least(one: Callable[[], float], other: Callable[[], float]) -> tuple[float, float]:
    """The least of each over rounds in turn: what the work costs when nothing disturbs it."""
    one()
    other()
    rounds = [(one(), other()) for _ in range(ROUNDS)]
    return min(first for first, _ in rounds), min(second for _, second in rounds)


def compare(ours: Ours, reference: Reference) -> list[Line]:
    random = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return random.integers(1, VOCAB, shape)

    lines: list[Line] = []

    def add(name: str, tokens: int, costs: tuple[float, float], target: float) -> None:
        mine, theirs = costs
        ratio = theirs / mine
        unit, wanted = "tokens / CPU-s", f">= {target}"
        lines.append(
            Line(name, tokens / mine, tokens / theirs, unit, ratio, wanted, ratio >= target)
        )

    rows = draw(8, 257)
    costs = least(
        lambda: cost(ours.cpu, lambda: ours.forward_backward(rows), 2),
        lambda: cost(reference.cpu, lambda: reference.forward_backward(rows), 2),
    )
    add("forward_backward 8 x 256", 8 * 256, costs, 1.3)
    reference.model.eval()

    def streams(count: int, samples: int, calls: int) -> tuple[float, float]:
        def sample(side: Ours | Reference) -> None:
            side.sample(draw(count, PROMPT_TOKENS), samples, STREAM_TOKENS)

        return least(
            lambda: cost(ours.cpu, lambda: sample(ours), calls),
            lambda: cost(reference.cpu, lambda: sample(reference), calls),
        )

    add("sample 8 x 4 x 64", 32 * STREAM_TOKENS, streams(8, 4, 2), 3.0)
    add("sample one stream x 64", STREAM_TOKENS, streams(1, 1, 5), 2.0)
    known = draw(1, LONG_PROMPT)
    warm, cold = least(
        lambda: cost(ours.cpu, lambda: ours.sample(known, 1, 1), 20),
        lambda: cost(ours.cpu, lambda: ours.sample(draw(1, LONG_PROMPT), 1, 1), 4),
    )
    name = f"prompt of {LONG_PROMPT} again (vs first time)"
    ratio = cold / warm
    lines.append(Line(name, warm * 1e3, cold * 1e3, "CPU-ms", ratio, ">= 5.0", ratio >= 5))
    short = draw(1, 9)
    trips: list[float] = []
    for _ in range(60):
        start = time.perf_counter()
        ours.forward_backward(short)
        trips.append((time.perf_counter() - start) * 1e3)
    median = float(np.median(trips[10:]))
    name = "8-token forward_backward round trip (vs 30 ms)"
    lines.append(Line(name, median, 30.0, "ms wall", 30 / median, "< 30 ms", median < 30))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as model, tempfile.TemporaryDirectory() as state:
        make_model(model)
        with server(state) as (url, process):
            lines = compare(Ours(url, process, model), Reference(model))
    print(f"{'':48} {'ours':>10} {'reference':>10} {'unit':15} {'ratio':>6}  target")
    for line in lines:
        verdict = "met" if line.met else "UNMET"
        print(
            f"{line.name:48} {line.ours:10.1f} {line.reference:10.1f} {line.unit:15} "
            f"{line.ratio:6.2f}  {line.target:8} {verdict}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(line) for line in lines], indent=2))


if __name__ == "__main__":
    main()
