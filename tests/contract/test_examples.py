"""The examples, as a reader runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.contract.conftest import serving
from tinsmith.service.engine.torch_backend import TorchBackend

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_hello(tmp_path: Path) -> None:
    script = EXAMPLES / "01_hello.py"
    lines = script.read_text().splitlines()
    assert len(lines) <= 30
    assert [line for line in lines if "import" in line] == ["import tinker"]
    with serving(TorchBackend(device="cpu", dtype="float32", threads=1), tmp_path) as running:
        ran = subprocess.run(
            [sys.executable, script],
            env=os.environ | {"TINKER_BASE_URL": running.url},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert ran.returncode == 0, ran.stderr
    losses = [float(found) for found in re.findall(r"loss (\S+)", ran.stdout)]
    assert len(losses) >= 4
    assert losses == sorted(set(losses), reverse=True)
    for word in ("sample '12 + 30 = 42<|im_end|>'", "logprobs [None, ", "/weights/hello"):
        assert word in ran.stdout
