"""Names of datasets and where their rows come from; a row is a question with its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tinsmith.envs import arithmetic
from tinsmith.envs.problem import Row
from tinsmith.errors import ConfigError, one_of

Splits: TypeAlias = tuple[list[Row], list[Row]]  # for training, held out

# name -> loader; the seed decides which rows are held out
DATASETS: dict[str, Callable[[int], Splits]] = {
    "arithmetic": arithmetic.rows,
}


def check_name(name: str) -> None:
    if name not in DATASETS:
        raise ConfigError(one_of("env.dataset", name, list(DATASETS)))


def load(name: str, seed: int) -> Splits:
    check_name(name)
    return DATASETS[name](seed)
