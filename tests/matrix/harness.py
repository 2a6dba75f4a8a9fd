"""Runs calls of the SDK one by one, whatever its version, and notes how each went."""

from __future__ import annotations

import inspect
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import tinker

SECONDS = 60.0  # for one call; a call that needs longer has got stuck
TOKENS = [72, 101, 108, 108, 111, 32, 116, 104, 101, 114, 101]


class Absent(Exception):
    """This version of the SDK does not have the call."""


class World:
    """What earlier calls made and later ones use."""

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self.model = model
        self.service: Any = tinker.ServiceClient(base_url=url, api_key="tml-matrix")
        self.made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.made:
            raise LookupError(f"an earlier call should have made the {name}")
        return self.made[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.made[name] = value


Call = Callable[[World], None]
CALLS: dict[str, Call] = {}


def call(name: str) -> Callable[[Call], Call]:
    """Names a row of the table; rows run in the order in which they are written."""

    def add(function: Call) -> Call:
        CALLS[name] = function
        return function

    return add


def method(thing: Any, name: str, *parameters: str) -> Callable[..., Any]:
    """A method of this SDK with these parameters, or Absent."""
    found = getattr(thing, name, None)
    if found is None:
        raise Absent(f"no {name}")
    for parameter in parameters:
        if parameter not in inspect.signature(found).parameters:
            raise Absent(f"{name} has no {parameter}")
    return found


def wait(value: Any) -> Any:
    """The result of a future of any kind; anything else as it is."""
    while hasattr(value, "result"):
        value = value.result(SECONDS)
    return value


async def awaited(value: Any) -> Any:
    """The result of something to await, which may be a future once more."""
    while inspect.isawaitable(value) or hasattr(value, "result_async"):
        value = await (value.result_async() if hasattr(value, "result_async") else value)
    return value


def prompt(tokens: Iterable[int] = TOKENS) -> tinker.ModelInput:
    return tinker.ModelInput.from_ints(list(tokens))


def floats(values: Iterable[float]) -> tinker.TensorData:
    data = [float(value) for value in values]
    return tinker.TensorData(data=data, dtype="float32", shape=[len(data)])


def datum(tokens: list[int] = TOKENS, **inputs: Iterable[float]) -> tinker.Datum:
    targets = tinker.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1])
    loss_fn_inputs = {"target_tokens": targets, **{k: floats(v) for k, v in inputs.items()}}
    return tinker.Datum(model_input=prompt(tokens[:-1]), loss_fn_inputs=loss_fn_inputs)


def logprobs(result: Any, index: int = 0) -> list[float]:
    return [float(x) for x in result.loss_fn_outputs[index]["logprobs"].to_numpy().reshape(-1)]


def check(true: bool, words: str) -> None:
    if not true:
        raise AssertionError(words)


def check_close(found: Iterable[float], wanted: Iterable[float], within: float = 1e-3) -> None:
    found, wanted = list(found), list(wanted)
    check(len(found) == len(wanted), f"{len(found)} numbers, not {len(wanted)}")
    for a, b in zip(found, wanted, strict=True):
        check(math.isclose(a, b, rel_tol=within, abs_tol=within), f"{a} is not {b}")


def run(world: World, say: Callable[[str], None]) -> dict[str, dict[str, str]]:
    """Every call's fate: ok, absent or error, with a line that says more."""
    table: dict[str, dict[str, str]] = {}
    for name, function in CALLS.items():
        started = time.monotonic()
        fate = _one(world, function)
        table[name] = fate
        say(f"{fate['status']:7} {time.monotonic() - started:6.2f} s  {name}  {fate['detail']}")
    return table


def _one(world: World, function: Call) -> dict[str, str]:
    fate = {"status": "error", "detail": f"no answer in {SECONDS:.0f} s"}

    def go() -> None:
        try:
            function(world)
        except Absent as error:
            fate.update(status="absent", detail=str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this row's result
            words = " ".join(f"{type(error).__name__}: {error}".split())
            last = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in last if "matrix" in frame.filename][-1]
            fate.update(status="error", detail=f"{words[:400]} (line {ours.lineno})")
        else:
            fate.update(status="ok", detail="")

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return dict(fate)
