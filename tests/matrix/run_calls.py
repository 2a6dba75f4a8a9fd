"""Makes every call a user of the SDK makes; needs nothing but the SDK, of any version, and a service."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import sys
import urllib.request

# The modules are imported for the rows they add, in the order of the table.
import training_calls  # noqa: F401 # isort: skip
import sampling_calls  # noqa: F401 # isort: skip
import rest_calls  # noqa: F401 # isort: skip
from harness import World, run


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=10):
            return True
    except OSError:
        return False


def main(url: str, model: str) -> int:
    if not answers(url):
        sys.exit(f"no service answers at {url}; start one with tinsmith serve.")
    logging.getLogger("tinker").setLevel(logging.ERROR)
    os.environ["TINKER_PROJECT_ID"] = "matrix"  # copy_weights asks for one

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    table = run(World(url, model), say)
    version = importlib.metadata.version("tinker")
    print(json.dumps({"version": version, "calls": table}), flush=True)
    return int(any(fate["status"] == "error" for fate in table.values()))


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    # Some versions wait at exit for threads which a failed call left behind.
    os._exit(code)
