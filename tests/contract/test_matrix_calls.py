"""The calls of tests/matrix with the installed SDK; `make sdk-matrix` makes them with other versions."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.contract.conftest import BackendFactory, Running
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def backend_factory() -> BackendFactory:
    return lambda: TorchBackend(device="cpu")


async def test_every_call_of_the_installed_sdk_works(server: Running) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TINKER_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", str(ROOT / "tests" / "matrix" / "run_calls.py")),
        *(server.url, EMBEDDED_MODEL),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean | {"HF_HUB_OFFLINE": "1"},
    )
    said, complaints = await process.communicate()
    assert said, complaints.decode()
    calls = json.loads(said.splitlines()[-1])["calls"]
    assert {name: fate for name, fate in calls.items() if fate["status"] == "error"} == {}
    absent = {name for name, fate in calls.items() if fate["status"] == "absent"}
    assert absent == {"get_checkpoint_archive_url"}  # which 0.36 has removed


def test_the_page_of_versions_has_a_row_for_every_call() -> None:
    sources = (ROOT / "tests" / "matrix").glob("*_calls.py")
    calls = {name for file in sources for name in re.findall(r'@call\("(.*)"\)', file.read_text())}
    lines = (ROOT / "docs" / "sdk_versions.md").read_text().splitlines()
    rows = {line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")}
    assert rows - {"call"} == calls, "run `make sdk-matrix WRITE=1`"
    assert not any("✗" in line for line in lines if line.startswith("| "))
