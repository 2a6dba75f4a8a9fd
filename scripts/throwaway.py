"""Virtual environments and a service of their own for the scripts beside this file."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"


def environment(directory: Path, packages: Sequence[str]) -> Path:
    """The Python of a virtual environment with these packages, made if it is not there yet."""
    python = directory / "bin" / "python"
    stamp = directory / ".installed"
    wanted = "\n".join(packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {', '.join(packages)} in {directory}", flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *packages], capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(directory, ignore_errors=True)
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        sys.exit(
            f"pip could not install {', '.join(packages)}; this needs a network (or a package index that "
            "pip is configured for) the first time.\n" + "\n".join(errors[-3:])
        )
    stamp.write_text(wanted)
    return python


@contextmanager
def service() -> Iterator[str]:
    """The address of a service with a directory of its own, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="tinsmith-") as directory:
        log = Path(directory) / "service.log"
        command = [sys.executable, "-m", "tinsmith", "serve", "--port", "0"]
        with log.open("w") as errors:
            process = subprocess.Popen(
                [*command, "--directory", str(Path(directory) / "service")],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
            )
        try:
            yield _address(process, log)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://\S+", line):
            return found.group()
    sys.exit(f"the service did not start:\n{log.read_text()[-2000:]}")
