"""Small requests that every engine under test can carry out."""

from __future__ import annotations

import numpy as np
import tinker

TOKENS = [72, 101, 108, 108, 111, 32, 116, 104]


def datum(tokens: list[int] | None = None, **inputs: list[float]) -> tinker.Datum:
    tokens = tokens or TOKENS
    loss_fn_inputs = {"target_tokens": np.asarray(tokens[1:], dtype=np.int64)}
    for name, values in inputs.items():
        loss_fn_inputs[name] = np.asarray(values, dtype=np.float32)
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=loss_fn_inputs
    )


def prompt(length: int = 4) -> tinker.ModelInput:
    return tinker.ModelInput.from_ints((TOKENS * (length // len(TOKENS) + 1))[:length])
