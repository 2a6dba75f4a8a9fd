"""The demo: train the embedded model, once for each seed, and show that held-out reward rose.

    python scripts/demo.py [SEED ...]

Exit code 0 only if every run began at 0.45 or less and ended at 0.90 or more on problems it never
trained on.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tinsmith.records.reader import RunReader
from tinsmith.settings import runs_directory

START, GOAL = 0.45, 0.90


def main(seeds: list[str]) -> int:
    try:
        runs_directory().mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="demo-", dir=runs_directory()))
    except OSError as error:
        print(
            f"{runs_directory()} cannot be written: {error.strerror}; set TINSMITH_HOME to a place that can."
        )
        return 2
    curves: list[str] = []
    good = True
    for seed in seeds:
        run = folder / f"seed-{seed}"
        command = [sys.executable, "-m", "tinsmith", "train", f"seed={seed}", f"log_path={run}"]
        start = time.monotonic()
        code = subprocess.call(command)
        seconds = time.monotonic() - start
        if code != 0:
            return code
        steps = list(RunReader(run).metrics())
        held_out = [step["eval/reward"] for step in steps if "eval/reward" in step]
        before, after = held_out[0], held_out[-1]
        good = good and before <= START and after >= GOAL
        rewards = [step["reward"] for step in steps if "reward" in step]
        curves.append(
            f"seed {seed}: held-out {before:.3f} -> {after:.3f} in {seconds:.0f} s; training reward by step\n  "
            + " ".join(f"{reward:.2f}" for reward in rewards)
        )
    print()
    print("\n".join(curves))
    print(f"\n`tinsmith` is {Path(sys.executable).with_name('tinsmith')}")
    if not good:
        print(f"expected held-out reward of at most {START} before and at least {GOAL} after")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["0"]))
