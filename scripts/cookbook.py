"""Recipes of the unmodified tinker-cookbook against the service of this checkout, offline.

    python scripts/cookbook.py

Installs the cookbook in build/cookbook (once, needs a network), starts a service, and runs two steps of
`math_rl env=arithmetic` and two of `chat_sl` on a JSONL file with the embedded model. The exit code is 0 only if
both ran to their end with sound numbers. docs/cookbook.md has the same commands to type.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from throwaway import BUILD, ROOT, environment, service

from tinsmith.settings import EMBEDDED_MODEL, LOCAL_API_KEY

COOKBOOK = "tinker_cookbook[math-rl]==0.5.8"
STEPS = 2
SUMS = 256
# The embedded model writes conversations as Qwen3 does; its name is also its directory, seen from here.
COMMON = (f"model_name={EMBEDDED_MODEL}", "renderer_name=qwen3_instruct", f"max_steps={STEPS}")
RL = ("env=arithmetic", "groups_per_batch=32", "group_size=8", "learning_rate=1e-3", "eval_every=0")
SL = ("batch_size=64", "learning_rate=1e-3", "max_length=512", "eval_every=0")


def main() -> int:
    # The very torch of this environment: a range would take the newest build, with all of CUDA.
    torch = importlib.metadata.version("torch").split("+")[0]
    python = environment(BUILD / "cookbook", [COOKBOOK, f"torch=={torch}"])
    with tempfile.TemporaryDirectory(prefix="cookbook-") as directory, service() as url:
        home = Path(directory)
        rl = recipe(python, "math_rl", RL, url, home / "math_rl")
        show(rl, ("env/all/correct", "optim/kl_sample_train_v1", "optim/kl_sample_train_v2"))
        sl = recipe(python, "chat_sl", (f"dataset={sums(home)}", *SL), url, home / "chat_sl")
        show(sl, ("train_mean_nll", "num_loss_tokens"))
    good = (
        len(rl) == len(sl) == STEPS
        and all(abs(step["optim/kl_sample_train_v1"]) < 1e-4 for step in rl)
        and sl[-1]["train_mean_nll"] < sl[0]["train_mean_nll"]
    )
    print(
        "both recipes ran, with sound numbers" if good else "a recipe's numbers are not as expected"
    )
    return 0 if good else 1


def sums(directory: Path) -> Path:
    """Conversations to learn from, one a line."""
    numbers = random.Random(0)
    file = directory / "sums.jsonl"
    with file.open("w") as lines:
        for _ in range(SUMS):
            a, b = numbers.randrange(100), numbers.randrange(100)
            said = [("user", f"What is {a} + {b}?"), ("assistant", str(a + b))]
            messages = [{"role": role, "content": content} for role, content in said]
            lines.write(json.dumps({"messages": messages}) + "\n")
    return file


def recipe(
    python: Path, name: str, settings: tuple[str, ...], url: str, log: Path
) -> list[dict[str, Any]]:
    """The metrics of a recipe's steps."""
    command = [str(python), "-m", f"tinker_cookbook.recipes.{name}.train", *settings, *COMMON]
    command += [f"base_url={url}", f"log_path={log}"]
    print(f"$ {shlex.join(command)}", flush=True)
    mine = {"TINKER_API_KEY": LOCAL_API_KEY, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | mine, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(
            f"{done.stdout.decode()[-4000:]}\nthe recipe {name} failed; its last lines are above."
        )
    return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]


def show(steps: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    for step in steps:
        print(f"  step {step['step']}:", ", ".join(f"{name} {step[name]:.3g}" for name in names))


if __name__ == "__main__":
    sys.exit(main())
