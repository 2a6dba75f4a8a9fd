"""Trains the embedded model with several estimators and in all modes, three seeds each, and prints a table.

    python scripts/learning.py [--steps 40] [--seeds 0 1 2] [NAME ...]

NAME picks rows, such as grpo or async. Every row is `tinsmith train` with the words it shows. Exit code 0
only if every run ended at 0.90 or more on problems it never trained on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tinsmith.records.reader import RunReader

GOAL = 0.90

# name -> the words that tell it from the default settings
ROWS: dict[str, list[str]] = {
    "grpo": ["adv_estimator=grpo"],
    "rloo": ["adv_estimator=rloo"],
    "entropic": ["adv_estimator=entropic", "adv_beta=2.0"],
    "sync": ["mode=sync", "num_minibatches=4"],
    "stream": ["mode=stream", "num_minibatches=4"],
    "async": ["mode=async", "max_steps_off_policy=2", "num_minibatches=4"],
}


@dataclass(frozen=True)
class Outcome:
    before: float
    after: float
    seconds: float
    step_seconds: float
    waiting: float  # share of the time of both sides
    trainer_waiting: float
    sampler_waiting: float
    oldest: float


def train(words: list[str], seed: int, steps: int, folder: Path) -> Outcome:
    directory = folder / f"{'-'.join(words)}-{seed}"
    command = [sys.executable, "-m", "tinsmith", "train", f"log_path={directory}"]
    command += [f"seed={seed}", f"num_batches={steps}", *words]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    lines = list(RunReader(directory).metrics())
    held_out = [line["eval/reward"] for line in lines if "eval/reward" in line]
    trained = [line for line in lines if "reward" in line]
    return Outcome(
        before=held_out[0],
        after=held_out[-1],
        seconds=time.monotonic() - began,
        step_seconds=mean(line["time/step"] for line in trained),
        waiting=mean(line["time/waiting"] for line in trained),
        trainer_waiting=mean(line["time/trainer_waiting"] for line in trained),
        sampler_waiting=mean(line["time/sampler_waiting"] for line in trained),
        oldest=max(line.get("staleness_max", 0.0) for line in trained),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", choices=[*ROWS, []], metavar="NAME")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="learning-"))
    print(
        "| settings | seed | held out before → after | s | s a step | waiting | trainer | sampler | oldest |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    good = True
    for name in options.names or ROWS:
        for seed in options.seeds:
            outcome = train(ROWS[name], seed, options.steps, folder)
            good = good and outcome.after >= GOAL
            print(
                f"| {' '.join(ROWS[name])} | {seed} | {outcome.before:.3f} → {outcome.after:.3f} | {outcome.seconds:.0f} "
                f"| {outcome.step_seconds:.2f} | {outcome.waiting:.0%} | {outcome.trainer_waiting:.2f} s "
                f"| {outcome.sampler_waiting:.2f} s | {outcome.oldest:.0f} |",
                flush=True,
            )
    if not good:
        print(f"expected at least {GOAL} after training in every run")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
