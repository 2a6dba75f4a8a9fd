"""A home with a local service in it, for runs as people start them; nobody's wandb login."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of every process of the test; the service is ended afterwards."""
    home = tmp_path_factory.mktemp("home")
    environment = {name: v for name, v in os.environ.items() if not name.startswith("WANDB_")}
    environment |= {"TINSMITH_HOME": str(home), "HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tinsmith", "serve", "--port", "0", "--announce"]
    service = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout is not None
        assert "http://127.0.0.1" in service.stdout.readline()
        yield environment
    finally:
        service.terminate()
        service.wait(30)
