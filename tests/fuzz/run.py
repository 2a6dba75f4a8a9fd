"""`make fuzz`: 20,000 requests and more that no client should send, to a real server."""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path

from tests.fuzz.campaign import campaign, check


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--each", type=int, default=80, help="schemathesis requests per operation")
    options.add_argument("--mutations", type=int, default=18_000, help="malformed requests")
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    logging.getLogger("tinker").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        result = campaign(
            Path(directory), each=asked.each, mutations=asked.mutations, seed=asked.seed
        )
    print("\n".join(result.lines()))
    for failure in result.report.failures[:20]:
        print(f"\n{failure}")
    check(result)


if __name__ == "__main__":
    main()
