"""The trainer's own CPU time a step, outside of waiting for the service.

    python bench/trainer_overhead.py [--steps N] [--profile FILE] [--json FILE]

64 problems x 8 rollouts of 256 tokens a step, all trained on. The service is the real HTTP app in a process
of its own, over an engine that costs next to nothing; the trainer is `tinsmith train` in this process, with
the SDK as it is. What counts is the CPU time of this whole process, all threads, so also what it spends
while it waits. The target is under 1 CPU-second a step.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import inspect
import json
import os
import pstats
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

PROBLEMS, GROUP, TOKENS, WARM_UP = 64, 8, 256, 2
TARGET_SECONDS = 1.0
WORDS = (
    f"batch_size={PROBLEMS}",
    f"group_size={GROUP}",
    f"env.max_tokens={TOKENS}",
    "eval_size=0",
    "save_every=0",
    "no_signal=keep",  # an engine of chance earns no reward, and its rollouts shall be trained on
)

# phase -> what belongs to it: module and function or method, all of which run on the main thread
PARTS: dict[str, tuple[tuple[str, str], ...]] = {
    "prompts": (("tinsmith.envs.problem", "ProblemGroup.make_envs"),),
    "grading": (("tinsmith.envs.problem", "ProblemEnv.step"),),
    "advantages and datums": (
        ("tinsmith.rl.advantages", "advantages_of"),
        ("tinsmith.rl.datums", "merge_turns"),
        ("tinsmith.rl.datums", "TrainingSequence.datum"),
    ),
    "metrics": (
        ("tinsmith.rl.metrics", "rollout_metrics"),
        ("tinsmith.rl.metrics", "group_metrics"),
        ("tinsmith.rl.update", "Update._token_metrics"),
    ),
    "records": (
        ("tinsmith.rl.transcripts", "to_records"),
        ("tinsmith.records.writer", "RunWriter.rollouts"),
        ("tinsmith.records.writer", "RunWriter.metrics"),
        ("tinsmith.records.writer", "RunWriter.progress"),
    ),
}


# ── the service ──────────────────────────────────────────────────────────────────────────────


def serve(directory: Path) -> None:
    """Serve until killed; prints the address first."""
    import numpy as np
    import uvicorn

    from tinsmith.service.app import create_app
    from tinsmith.service.core import Service
    from tinsmith.service.engine.backend import Sampled, SampleResult
    from tinsmith.service.engine.fake import FakeBackend
    from tinsmith.service.protocol import BoundedProtocol
    from tinsmith.settings import EMBEDDED_MODEL

    class Chance(FakeBackend):
        """Says letters at random, always as many as it may, and all of them at once."""

        def _advance(self, running: Any) -> SampleResult:
            random, shape = running.generators[0], (running.job.num_samples, running.limit)
            tokens = random.integers(32, 127, shape).tolist()
            logprobs = (-random.exponential(2.0, shape)).astype(np.float32).tolist()
            return SampleResult(
                [Sampled(*row, "length") for row in zip(tokens, logprobs, strict=True)]
            )

        def optim_step(self, model: Any, adam: Any) -> Any:
            self._models[model].gradient[:] = 0.0  # the odds stay what they are
            return {"unclipped_grad_l2:mean": 1.0}

    backend = Chance(directory=make_tokenizer(directory), max_context=4096)
    service = Service(backend, directory / "service", token="t", default_model=EMBEDDED_MODEL)
    config = uvicorn.Config(
        create_app(service), port=0, http=BoundedProtocol, log_level="error", lifespan="on"
    )
    server = uvicorn.Server(config)

    startup = server.startup

    async def startup_and_tell(sockets: Any = None) -> None:
        await startup(sockets)
        port = server.servers[0].sockets[0].getsockname()[1]
        print(f"http://127.0.0.1:{port}", flush=True)

    server.startup = startup_and_tell
    server.run()


def make_tokenizer(directory: Path) -> Path:
    """A tokenizer whose ids are the letters' numbers, as FakeBackend reads them."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    place = directory / "tokenizer" / "fake" / "model"
    place.mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel({chr(i): i for i in range(256)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    return place


@contextmanager
def service(directory: Path) -> Iterator[str]:
    command = [sys.executable, __file__, "--serve", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            sys.exit("the service did not start")
        yield address
    finally:
        process.kill()
        process.wait()


# ── the clocks ───────────────────────────────────────────────────────────────────────────────


@dataclass
class Clocks:
    """CPU time of this process since the last step, by phase and by thread."""

    parts: Counter[str] = field(default_factory=Counter[str])
    marks: dict[str, float] = field(default_factory=dict[str, float])
    steps: list[dict[str, float]] = field(default_factory=list[dict[str, float]])

    def count(self, phase: str, seconds: float) -> None:
        self.parts[phase] += seconds

    def step(self) -> None:
        """A step is over: put down what it cost."""
        now = {"all": time.process_time(), "main": time.thread_time(), "python": python_threads()}
        if self.marks:
            spent = {name: now[name] - self.marks[name] for name in now}
            line = {phase: self.parts[phase] for phase in PARTS}
            line["rollouts, loop, waiting"] = spent["main"] - sum(line.values())
            line["SDK: its thread"] = spent["python"] - spent["main"]
            line["SDK: transport"] = spent["all"] - spent["python"]
            line["together"] = spent["all"]
            self.steps.append(line)
        self.marks = now
        self.parts.clear()


def python_threads() -> float:
    """CPU time of the threads that run Python; the rest of the process is the SDK's transport."""
    total = 0.0
    for thread in threading.enumerate():
        if thread.ident is not None:
            total += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return total


def watch(clocks: Clocks) -> None:
    """Put a clock around every part, wherever it was imported to."""
    import importlib

    importlib.import_module("tinsmith.rl.loop")
    for phase, places in PARTS.items():
        for module, path in places:
            owner: Any = importlib.import_module(module)
            *classes, name = path.split(".")
            for part in classes:
                owner = getattr(owner, part)
            plain = getattr(owner, name)
            clocked = around(plain, phase, clocks)
            setattr(owner, name, clocked)
            for other in list(sys.modules.values()):
                if not classes and getattr(other, name, None) is plain:
                    setattr(other, name, clocked)


def around(call: Callable[..., Any], phase: str, clocks: Clocks) -> Callable[..., Any]:
    """The call with its CPU time counted. No part calls another: its time would count twice."""
    if inspect.iscoroutinefunction(call):

        @functools.wraps(call)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return await call(
                    *args, **kwargs
                )  # never suspended here: arithmetic is graded at once
            finally:
                clocks.count(phase, time.thread_time() - began)

        return awaited

    @functools.wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            clocks.count(phase, time.thread_time() - began)

    return called


# ── the run ──────────────────────────────────────────────────────────────────────────────────


def train(url: str, directory: Path, steps: int, clocks: Clocks) -> None:
    from tinsmith.cli.start import ATTACHED
    from tinsmith.cli.train import run
    from tinsmith.records.writer import RunWriter

    watch(clocks)
    written = RunWriter.metrics

    def metrics(self: RunWriter, step: int, values: Any) -> None:
        written(self, step, values)
        clocks.step()

    RunWriter.metrics = metrics  # the last thing of a step
    words = [f"num_batches={steps + WARM_UP}", f"base_url={url}", *WORDS]
    code = run([ATTACHED, str(directory / "run"), *words])
    if code != 0:
        sys.exit(f"the run ended with exit code {code}")
    check(directory / "run")


def check(run: Path) -> None:
    """That the steps were what this measures: all rollouts as long as they may be, and trained on."""
    from tinsmith.records.reader import RunReader

    for line in RunReader(run).metrics():
        assert line["tokens"] == TOKENS, line
        assert line["trained_rollouts"] == PROBLEMS * GROUP, line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--profile", type=Path, help="write a profile of the main thread here")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return
    clocks = Clocks()
    with tempfile.TemporaryDirectory() as home:
        os.environ["TINSMITH_HOME"] = home
        with service(Path(home)) as url, profiled(asked.profile):
            train(url, Path(home), asked.steps, clocks)
    counted = clocks.steps[WARM_UP - 1 :]
    middle = sorted(counted, key=lambda step: step["together"])[(len(counted) - 1) // 2]
    print(
        f"\n{PROBLEMS * GROUP} rollouts of {TOKENS} tokens; the middle one of {len(counted)} steps, CPU-ms"
    )
    for name, seconds in middle.items():
        print(f"{name:28} {seconds * 1e3:8.0f}")
    verdict = "met" if middle["together"] < TARGET_SECONDS else "UNMET"
    print(f"target: under {TARGET_SECONDS * 1e3:.0f} CPU-ms a step: {verdict}")
    if asked.json:
        asked.json.write_text(json.dumps(middle, indent=2))


@contextmanager
def profiled(to: Path | None) -> Iterator[None]:
    if to is None:
        yield
        return
    profile = cProfile.Profile(time.thread_time)
    with profile:
        yield
    profile.dump_stats(to)
    pstats.Stats(str(to)).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
