"""Every math command people type, on a small model and without a network: does it run, and does it learn?

    python scripts/math_commands.py [--model MODEL] [--only TEXT] [--write]

Files in the columns of each dataset are written into a home of their own, with sums for problems, so that
the embedded model can do some of them. `--write` renews docs/math_commands.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tinsmith.records.reader import RunReader
from tinsmith.settings import EMBEDDED_MODEL

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "math_commands.md"
TRAIN_ROWS, TEST_ROWS = 400, 60
RUN_SECONDS = 600.0
DEAD_PROXY = "http://127.0.0.1:9"  # nobody there: whatever asks the network fails at once

# What is put in place of a command's own values, so that it takes seconds on a CPU.
SMALL = {"batch_size": "32", "num_batches": "8", "eval_size": "50"}
SMALL_TOKENS = {EMBEDDED_MODEL: 8}
USUAL_SMALL_TOKENS = 48

# ── the commands, as they are typed ──────────────────────────────────────────────────────────

WANDB = "wandb.entity=my-team wandb.project=tinker"
COMMANDS: tuple[tuple[str, str], ...] = (
    (
        "arithmetic",
        "model_name=meta-llama/Llama-3.2-1B batch_size=100 group_size=4 optim.lr=1e-4 env=MathConfig "
        f"env.dataset=arithmetic env.max_tokens=5 {WANDB} wandb.run_name=debug-arithmetic",
    ),
    (
        "MATH-500, with W&B",
        "model_name=Qwen/Qwen3-4B-Instruct-2507 num_batches=5 group_size=4 wandb.enabled=True "
        f"{WANDB} wandb.run_name=debug-math-500 env=MathConfig env.dataset=math500 env.max_tokens=2048",
    ),
    (
        "MATH without MATH-500",
        "model_name=Qwen/Qwen3-8B group_size=16 batch_size=64 optim.lr=2e-5 env=MathConfig "
        f"env.dataset=hendrycks env.max_tokens=512 {WANDB} wandb.run_name=debug-math-hendrycks",
    ),
    (
        "Polaris, with W&B",
        "model_name=meta-llama/Llama-3.1-8B-Instruct num_batches=100 group_size=16 wandb.enabled=True "
        f"{WANDB} wandb.run_name=debug-math-500 env=MathConfig env.dataset=polaris env.max_tokens=16384",
    ),
    (
        "entropic advantages, a log_path",
        "model_name=openai/gpt-oss-20b num_batches=50 batch_size=512 group_size=64 lora_rank=32 "
        "adv_estimator=entropic adv_beta=2.0 log_path=RESULTS env=MathConfig env.dataset=deepmath "
        f"env.max_tokens=2048 wandb.enabled=True {WANDB} wandb.run_name=entropic",
    ),
    (
        "one subject, another seed, tags",
        "model_name=Qwen/Qwen3-8B group_size=8 env=MathConfig env.dataset=hendrycks env.subset=algebra "
        f"env.seed=1 env.max_tokens=512 wandb.enabled=True {WANDB} wandb.tags=math,algebra",
    ),
    (
        "hyphens, a service by URL, checkpoints",
        "--model-name=Qwen/Qwen3-8B --group-size=8 --save-every=2 --base-url=URL --env=MathConfig "
        "--env.dataset=math500 --env.max-tokens=512",
    ),
    ("gsm8k", "model_name=Qwen/Qwen3-8B group_size=8 env.dataset=gsm8k"),
    ("minerva", "model_name=Qwen/Qwen3-8B group_size=8 env.dataset=minerva"),
    ("deepmath", "model_name=Qwen/Qwen3-8B group_size=8 env.dataset=deepmath"),
    ("nemotron", "model_name=Qwen/Qwen3-8B group_size=8 env.dataset=nemotron"),
    ("olmo3", "model_name=Qwen/Qwen3-8B group_size=8 env.dataset=olmo3"),
    ("dapo", "model_name=Qwen/Qwen3-8B group_size=8 env.dataset=dapo"),
    ("aime", "model_name=Qwen/Qwen3-8B group_size=8 env.dataset=aime"),
    (
        "a JSONL file",
        "model_name=Qwen/Qwen3-8B group_size=8 env.dataset=FILES/sums.jsonl env.question=text env.answer=total",
    ),
    ("a Parquet file", "model_name=Qwen/Qwen3-8B group_size=8 env.dataset=FILES/sums.parquet"),
    (
        "reasoning_gym",
        "model_name=Qwen/Qwen3-8B group_size=8 env.dataset=reasoning_gym:chain_sum "
        "env.task_args=max_terms=2,max_digits=1",
    ),
)  # fmt: skip

# ── files in the datasets' own columns ───────────────────────────────────────────────────────

Make = Callable[[str, int], dict[str, Any]]  # question, answer -> a row


def _math(question: str, answer: int) -> dict[str, Any]:
    solution = f"We add the two numbers and get $\\boxed{{{answer}}}$."
    return {"problem": question, "level": "Level 1", "type": "Algebra", "solution": solution}


ROWS: dict[str, tuple[tuple[str, ...], Make]] = {
    "gsm8k": (
        ("train", "test"),
        lambda q, a: {"question": q, "answer": f"They are <<{a}={a}>>{a} together.\n#### {a}"},
    ),
    "math500": (
        ("test",),
        lambda q, a: {"problem": q, "solution": f"$\\boxed{{{a}}}$", "answer": str(a), "subject": "Algebra",
                      "level": 1, "unique_id": f"test/algebra/{a}.json"},
    ),
    "hendrycks": (("train", "test"), _math),
    "minerva": (("test",), _math),
    "polaris": (("train",), lambda q, a: {"problem": q, "answer": str(a), "difficulty": "1/8"}),
    "deepmath": (
        ("train",),
        lambda q, a: {"question": q, "final_answer": str(a), "difficulty": 5.5, "topic": "Algebra"},
    ),
    "nemotron": (("high_part02",), lambda q, a: {"problem": q, "expected_answer": str(a)}),
    "olmo3": (
        ("train",),
        lambda q, a: {"prompt": f"user: {q}", "ground_truth": [str(a)], "dataset": ["math"]},
    ),
    "dapo": (("train",), lambda q, a: {"prompt": q, "solution": str(a), "data_source": "math_dapo"}),
    "aime": (
        ("train",),
        lambda q, a: {"id": a, "problem": q, "solution": f"It is ${a}$.", "answer": str(a), "url": ""},
    ),
}  # fmt: skip


def write_datasets(folder: Path) -> None:
    """A file for every split of every dataset; no two splits hold the same sum."""
    for name, (splits, make) in ROWS.items():
        sums = _sums("MATH" if name in ("hendrycks", "math500") else name)
        for number, split in enumerate(splits):
            # MATH-500 gets sums of its own, as MATH leaves its problems out.
            rows = TEST_ROWS if number else TRAIN_ROWS
            skipped = 4 * TRAIN_ROWS if name == "math500" else 0
            chosen = sums[skipped + number * TRAIN_ROWS :][:rows]
            _write(folder / name / f"{split}.jsonl", [make(q, a) for q, a in chosen])


def write_files(folder: Path) -> None:
    """Files without a name of their own: one with columns of its own, one with the usual ones."""
    import pyarrow
    from pyarrow.parquet import write_table

    sums = _sums("jsonl")[:TRAIN_ROWS]
    _write(folder / "sums.jsonl", [{"text": q, "total": a} for q, a in sums])
    sums = _sums("parquet")[:TRAIN_ROWS]
    columns = {"question": [q for q, _ in sums], "answer": [str(a) for _, a in sums]}
    write_table(pyarrow.table(columns), folder / "sums.parquet")


def _sums(seed: str) -> list[tuple[str, int]]:
    pairs = [(a, b) for a in range(100) for b in range(100)]
    Random(seed).shuffle(pairs)
    return [(f"What is {a} + {b}?", a + b) for a, b in pairs]


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# ── running them ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Outcome:
    name: str
    command: str
    code: int
    steps: int
    before: float | None
    after: float | None
    seconds: float
    complaint: str


def reduced(command: str, model: str, run: Path, files: Path, url: str) -> list[str]:
    """The command's words with the small values in their places."""
    hyphens = command.startswith("--")
    words = (word.lstrip("-").split("=", 1) for word in command.split())
    given = {key.replace("-", "_"): value for key, value in words}
    small = given | SMALL | {"model_name": model}
    small.pop("optim.lr", None)  # it was chosen for the other model
    dataset = given["env.dataset"].replace("FILES", str(files))
    small["env.dataset"] = dataset
    most = SMALL_TOKENS.get(model, USUAL_SMALL_TOKENS)
    small["env.max_tokens"] = str(min(int(given.get("env.max_tokens", most)), most))
    small["group_size"] = str(min(int(given["group_size"]), 16))
    small["log_path"] = str(run)
    if "base_url" in given:
        small["base_url"] = url
    if given.get("wandb.enabled") == "True":
        small["wandb.mode"] = "offline"
    if model == EMBEDDED_MODEL and dataset != "arithmetic":
        small["env.prompt"] = ""  # it knows sums and no instructions
    if hyphens:
        return [f"--{key.replace('_', '-')}={value}" for key, value in small.items()]
    return [f"{key}={value}" for key, value in small.items()]


def run_one(name: str, command: str, words: Sequence[str], run: Path, home: Path) -> Outcome:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tinsmith", "train", *words],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        cwd=home,
    )
    seconds = time.monotonic() - began
    lines = list(RunReader(run).metrics())
    rewards = [line["eval/reward"] for line in lines if "eval/reward" in line]
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return Outcome(
        name=name,
        command=command,
        code=done.returncode,
        steps=max((int(line["step"]) for line in lines), default=0),
        before=rewards[0] if rewards else None,
        after=rewards[-1] if len(rewards) > 1 else None,
        seconds=seconds,
        complaint=said[-1] if done.returncode and said else "",
    )


def environment(home: Path) -> dict[str, str]:
    """Of processes that shall find nothing but this home, and no network."""
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), DEAD_PROXY)
    own = {"TINSMITH_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **proxies, **own, "PYTHONPATH": str(ROOT)}


@contextmanager
def service(home: Path) -> Iterator[str]:
    """The local service of that home, ended afterwards."""
    command = [sys.executable, "-m", "tinsmith", "serve", "--port", "0", "--announce"]
    process = subprocess.Popen(
        command, env=environment(home), stdout=subprocess.PIPE, text=True, cwd=home
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = next((word for word in line.split() if word.startswith("http://")), None)
        if address is None:
            sys.exit(f"the service did not start: {line}")
        yield address
    finally:
        process.terminate()
        process.wait(60)


# ── the page ─────────────────────────────────────────────────────────────────────────────────


def page(outcomes: Sequence[Outcome], model: str) -> str:
    rows = [
        "# Math commands",
        "",
        f"Every kind of math command, run on `{model}` without a network by `make math-commands` (`WRITE=1` renews this",
        "page). The commands are shown as they are typed for a large model. To take seconds on a CPU each was run with",
        f"`model_name={model}` and its own learning rate, {', '.join(f'`{k}={v}`' for k, v in SMALL.items())}, `group_size` of at most",
        f"16, `env.max_tokens` of at most {SMALL_TOKENS.get(model, USUAL_SMALL_TOKENS)}, `wandb.mode=offline`"
        + (" and an empty `env.prompt`" if model == EMBEDDED_MODEL else "")
        + ". The files in `$TINSMITH_HOME/datasets`",
        f"have each dataset's own columns and {TRAIN_ROWS} sums for problems; `reasoning_gym` makes its own, in words that",
        "the embedded model has never seen.",
        "",
        "| | `tinsmith train ...` | exit code | steps | held-out reward before | after |",
        "|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {one.name} | `{one.command}` | {one.code} | {one.steps} | {_number(one.before)} | {_number(one.after)} |"
        for one in outcomes
    ]
    return "\n".join(rows) + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default=EMBEDDED_MODEL, help="instead of the embedded one: smollm2"
    )
    parser.add_argument("--only", default="", help="commands in whose name or words this appears")
    parser.add_argument("--write", action="store_true", help="renew docs/math_commands.md")
    asked = parser.parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="tinsmith-") as directory:
        home = Path(directory)
        write_datasets(home / "datasets")
        write_files(home)
        with service(home) as url:
            for number, (name, command) in enumerate(COMMANDS):
                if asked.only not in f"{name} {command}":
                    continue
                run = home / "runs" / f"{number:02d}"
                words = reduced(command, asked.model, run, home, url)
                outcomes.append(run_one(name, command, words, run, home))
                one = outcomes[-1]
                print(
                    f"{one.name:40} exit {one.code}  {one.steps:3} steps  {_number(one.before):>5} -> "
                    f"{_number(one.after):5} {one.seconds:5.0f} s  {one.complaint}",
                    flush=True,
                )
    if asked.write and not asked.only:
        PAGE.write_text(page(outcomes, asked.model))
        print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0 if all(one.code == 0 for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
