"""Every call of the SDK, in several of its versions, against the service of this checkout.

    python scripts/sdk_matrix.py [--write] [VERSION ...]

Each version gets a virtual environment of its own in build/sdk, which later runs use again. `all` stands for
the newest release of every minor version since 0.12. --write renews docs/sdk_versions.md. The exit code is 0
only if no call failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from throwaway import BUILD, ROOT, environment, service

from tinsmith.settings import EMBEDDED_MODEL

VERSIONS = ("0.12.0", "0.18.0", "0.25.0", "0.30.0", "0.36.0")
OLDEST = (0, 12)
PAGE = ROOT / "docs" / "sdk_versions.md"
SIGNS = {"ok": "✓", "absent": "–", "error": "✗"}
# forward_backward_custom differentiates with torch. It is large, so it is lent and not installed again.
LENT = ("torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe")

Table = dict[str, dict[str, dict[str, str]]]  # version -> call -> status and detail


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="The SDK's versions against this service.")
    parser.add_argument("versions", nargs="*", default=list(VERSIONS), metavar="VERSION")
    parser.add_argument("--write", action="store_true", help=f"renew {PAGE.relative_to(ROOT)}")
    given = parser.parse_args(arguments)
    versions = newest_of_each() if "all" in given.versions else given.versions
    pythons = {version: python_with(version) for version in versions}
    table: Table = {}
    for version, python in pythons.items():
        # A service for each: what one version left behind cannot help or hurt another.
        with service() as url:
            print(f"tinker {version}", flush=True)
            table[version] = calls(python, url)
    show(table)
    failed = [
        f"{version}  {name}: {fate['detail']}"
        for version, fates in table.items()
        for name, fate in fates.items()
        if fate["status"] == "error"
    ]
    print("\n".join(failed) or "no call failed")
    if given.write:
        PAGE.write_text(page(table))
    return 1 if failed else 0


def newest_of_each() -> list[str]:
    """The newest release of every minor version that is not too old, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "tinker"]
    done = subprocess.run(command, capture_output=True, text=True)
    listed = re.search(r"Available versions: (.*)", done.stdout)
    if listed is None:
        sys.exit(
            "pip could not list the versions of tinker; this needs a network. Name them instead."
        )
    newest: dict[tuple[int, int], tuple[int, ...]] = {}
    for name in listed.group(1).split(", "):
        numbers = tuple(int(part) for part in name.split("."))
        minor = numbers[:2]
        if minor >= OLDEST:
            newest[minor] = max(newest.get(minor, ()), numbers)
    return [".".join(map(str, newest[minor])) for minor in sorted(newest)]


def python_with(version: str) -> Path:
    """A Python with this version of the SDK and nothing of ours."""
    # 0.18.0 needs orjson without saying so.
    python = environment(BUILD / "sdk" / version, [f"tinker=={version}", "orjson"])
    lend_torch(python)
    return python


def lend_torch(python: Path) -> None:
    """Lets `python` import this environment's torch; its own packages come first."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    ours = Path(spec.origin).parent.parent
    lent = BUILD / "sdk" / "lent"
    lent.mkdir(parents=True, exist_ok=True)
    for name in LENT:
        link = lent / name
        if (ours / name).exists() and not link.exists():
            link.symlink_to(ours / name)
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(f"{lent}\n")


def calls(python: Path, url: str) -> dict[str, dict[str, str]]:
    script = ROOT / "tests" / "matrix" / "run_calls.py"
    hidden = ("TINKER_", "PYTHONPATH", "HF_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    command = [str(python), "-W", "ignore", str(script), url, EMBEDDED_MODEL]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=clean | {"HF_HUB_OFFLINE": "1"}
    )
    lines = done.stdout.splitlines()
    if not lines:
        sys.exit(f"the calls did not run (exit code {done.returncode}); what they said is above.")
    return json.loads(lines[-1])["calls"]


def show(table: Table) -> None:
    names = list(next(iter(table.values())))
    width = max(map(len, names))
    print(" " * width, *(f"{version:>7}" for version in table))
    for name in names:
        print(f"{name:{width}}", *(f"{SIGNS[table[v][name]['status']]:>7}" for v in table))


def page(table: Table) -> str:
    names = list(next(iter(table.values())))
    rows = [
        f"| {name} | {' | '.join(SIGNS[table[v][name]['status']] for v in table)} |"
        for name in names
    ]
    return "\n".join(
        [
            "# Versions of the SDK",
            "",
            "The service works with the `tinker` SDK from 0.12 to the newest: requests and results are protobuf where the",
            "SDK uses it and JSON where it does not (before 0.25). This table is written by `make sdk-matrix WRITE=1`, which",
            "installs each version in a virtual environment of its own and makes the calls of `tests/matrix/` against a",
            "fresh service with the embedded model. A row checks the answer, not only that there is one: losses against",
            "their formulas, resumed training against uninterrupted training, sampled log-probabilities against the",
            "trainer's.",
            "",
            "✓ works · – this version of the SDK has no such call · ✗ fails",
            "",
            f"| call | {' | '.join(table)} |",
            f"|---{'|---' * len(table)}|",
            *rows,
            "",
            'Other versions: `make sdk-matrix VERSIONS="0.20.0 0.33.1"`, or `VERSIONS=all` for the newest release of every',
            "minor version. The first run of a version needs a network, and about 350 MB in `build/sdk`.",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
