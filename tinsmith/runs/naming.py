"""Names for runs that people can say and remember, such as calm-anvil."""

from __future__ import annotations

import random
from pathlib import Path

from tinsmith.errors import StorageError

MOODS = (
    "able amber apt bold brave bright brisk calm clear clever copper crisp deft early easy fair "
    "fine firm fond frank fresh gentle glad golden grand green handy happy hardy honest humble "
    "jolly keen kind light lively loyal lucid mellow merry mild neat noble patient plain proud "
    "quick quiet rapid ready rosy sharp silver sleek smooth snug solid spry steady still sturdy "
    "sunny sure swift tidy tough trim true warm wise witty"
)
THINGS = (
    "anvil awl bellows bench bolt bracket brazier bucket burr chisel clamp crucible die dowel file "
    "flange flux forge funnel furnace gasket gauge gear grommet hammer handle hinge hook ingot jig "
    "joint kettle key kiln ladle lamp lantern latch lathe lever mallet mandrel nail needle nozzle "
    "pan pin pitcher plate pliers pulley punch rasp rivet rod scale screw seam shears sheet socket "
    "solder spanner spring stamp stove swage tankard tin tongs torch valve vane vise washer wedge "
    "wheel wire wrench"
)

TRIES = 50


def claim_directory(generator: random.Random, runs: Path) -> Path:
    """Make a run directory under `runs` with a name no other run has, even one that starts right now."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        return _claim(generator, runs)
    except OSError as error:
        raise StorageError(
            f"no run can be recorded in {runs}: {error.strerror}; set TINSMITH_HOME or TINSMITH_RUNS to "
            "a directory that can be written, or give log_path."
        ) from error


def _claim(generator: random.Random, runs: Path) -> Path:
    name = ""
    for _ in range(TRIES):
        name = f"{generator.choice(MOODS.split())}-{generator.choice(THINGS.split())}"
        if _make(runs / name):
            return runs / name
    number = 2  # the plain names have become hard to find
    while not _make(runs / f"{name}-{number}"):
        number += 1
    return runs / f"{name}-{number}"


def _make(path: Path) -> bool:
    """Create the directory; False when the name is taken. mkdir is what makes the claim atomic."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True
