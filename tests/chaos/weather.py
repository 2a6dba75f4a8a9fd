"""Trains through a proxy that makes bad weather, and without it; compares all that was recorded.

`python -m tests.chaos.weather --faults 500` is the long one; the tests run a short one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.proxy import KINDS, Plan, running
from tinsmith.records.layout import RunLayout
from tinsmith.records.metrics import is_time
from tinsmith.records.reader import RunReader

TRAIN_SECONDS = 3600.0
CLOCKS = (
    "seconds",
    "at",
    "state_path",
    "sampler_path",
)  # times, and names that hold the session's id


@dataclass(frozen=True)
class Run:
    """What is left of a run that finished: every value it recorded that is not a time."""

    values: dict[str, Any]  # place -> value
    steps: int
    seconds: float


@contextmanager
def service(home: Path) -> Iterator[str]:
    """`tinsmith serve` on the embedded model, ended afterwards."""
    command = [sys.executable, "-m", "tinsmith", "serve", "--port", "0"]
    environment = os.environ | {"TINSMITH_HOME": str(home), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--directory", str(home / "service")],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://127.0.0.1" in line, line
        yield next(word for word in line.split() if word.startswith("http://"))
    finally:
        ended = process.poll()
        process.terminate()
        process.wait(60)
        assert ended is None, f"the service ended by itself with exit code {ended}"


def train(home: Path, url: str, name: str, words: Sequence[str]) -> Run:
    """`tinsmith train` to its end; raises with its log when it fails."""
    directory = home / name
    command = [
        sys.executable,
        "-m",
        "tinsmith",
        "train",
        f"base_url={url}",
        f"log_path={directory}",
    ]
    environment = os.environ | {"TINSMITH_HOME": str(home), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    done = subprocess.run(
        [*command, *words], env=environment, capture_output=True, text=True, timeout=TRAIN_SECONDS
    )
    seconds = time.monotonic() - began
    if done.returncode != 0:
        log = RunReader(directory).log()
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}\n{log}")
    values = recorded(directory) | weights(home / "service", directory)
    return Run(values, max(int(line["step"]) for line in RunReader(directory).metrics()), seconds)


def recorded(directory: Path) -> dict[str, Any]:
    """Every recorded value that is not a time, by its place."""
    reader, values = RunReader(directory), dict[str, Any]()
    for line in reader.metrics():
        _spread(f"metrics {line['step']:g}", line, values)
    for step in RunLayout(directory).rollout_steps():
        for record in reader.rollouts(step):
            place = f"rollout {step} {record.split} {record.problem_id} {record.member}"
            _spread(place, record.to_json(), values)
    for checkpoint in reader.checkpoints():
        _spread(f"checkpoint {checkpoint.step}", vars(checkpoint), values)
    return values


def _spread(place: str, value: Any, values: dict[str, Any]) -> None:
    """Put the leaves of nested JSON down, each under the path to it; lists of numbers stay whole."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in CLOCKS and not is_time(str(key)):
                _spread(f"{place} {key}", part, values)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, part in enumerate(value):
            _spread(f"{place} {number}", part, values)
    else:
        values[place] = value


def weights(service: Path, directory: Path) -> dict[str, Any]:
    """Checksums of what the run's checkpoints hold: weights and optimizer state."""
    found: dict[str, Any] = {}
    for checkpoint in RunReader(directory).checkpoints():
        for path in (checkpoint.state_path, checkpoint.sampler_path):
            model, kind, name = str(path).removeprefix("tinker://").split("/")
            for file in sorted(
                (service / "checkpoints" / model / kind / name).glob("*.safetensors")
            ):
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                found[f"checkpoint {name} {kind} {file.name}"] = digest
    return found


def differences(one: Run, other: Run) -> list[str]:
    """The places where two runs recorded different things."""
    missing = object()
    return [
        f"{place}: {one.values.get(place, missing)} and {other.values.get(place, missing)}"
        for place in sorted(one.values.keys() | other.values.keys())
        if one.values.get(place, missing) != other.values.get(place, missing)
    ]


def report(plan: Plan, calm: Run, disturbed: Run, found: Sequence[str]) -> str:
    rows = [(kind, str(plan.done[kind])) for kind in KINDS]
    rows += [
        ("faults together", str(plan.done.total())),
        ("requests", str(plan.requests)),
        ("endpoints that suffered", str(len(plan.places))),
        ("steps", str(disturbed.steps)),
        ("seconds undisturbed", f"{calm.seconds:.1f}"),
        ("seconds disturbed", f"{disturbed.seconds:.1f}"),
        ("values compared", str(len(calm.values))),
        ("differences", str(len(found))),
    ]
    return "\n".join(f"{name:28} {value:>8}" for name, value in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--rate", type=float, default=0.15, help="share of requests that suffer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("words", nargs="*", help="settings of the run, such as mode=stream")
    asked = parser.parse_args()
    words = asked.words or ["num_batches=30", "batch_size=32", "save_every=5", "eval_size=50"]
    plan = Plan(asked.seed, asked.faults, asked.rate)
    with (
        tempfile.TemporaryDirectory(prefix="tinsmith-") as directory,
        service(Path(directory)) as url,
    ):
        calm = train(Path(directory), url, "calm", words)
        with running(url, plan) as proxy:
            disturbed = train(Path(directory), proxy, "disturbed", words)
    found = differences(calm, disturbed)
    print(report(plan, calm, disturbed, found))
    print("\n".join(f"{place} x{times}" for place, times in plan.places.most_common()))
    print("\n".join(found[:20]))
    # mode=async trains on whatever is there first: it must finish, and differs by its nature.
    equal = not found or "mode=async" in words
    return 0 if equal and plan.done.total() == asked.faults else 1


if __name__ == "__main__":
    sys.exit(main())
