"""key=value words to a TrainConfig, or one sentence that says what is wrong with them."""

from __future__ import annotations

import difflib
import math
import shutil
import textwrap
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import chz
from chz.blueprint import ConstructionException, ExtraneousBlueprintArg, InvalidBlueprintArg

from tinsmith.envs import DEFAULT, ENVIRONMENTS
from tinsmith.errors import ConfigError, TinsmithError, one_of
from tinsmith.records.files import Json
from tinsmith.rl.config import EnvConfig, TrainConfig

CHZ_ERRORS = (ConstructionException, ExtraneousBlueprintArg, InvalidBlueprintArg)
HELP = "`tinsmith train --help` lists every key."


@dataclass(frozen=True)
class Key:
    """One setting as it is typed."""

    name: str
    type: Any
    doc: str


def parse(words: Sequence[str]) -> TrainConfig:
    """The configuration that the words ask for; ConfigError is a sentence about the first wrong one."""
    given = split(words)
    env = given.get("env", DEFAULT.__name__)
    if env not in ENVIRONMENTS:
        raise ConfigError(one_of("env", env, list(ENVIRONMENTS)))
    known = {key.name: key for key in keys(ENVIRONMENTS[env])}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(_unknown(name, list(known)))
        _check_value(known[name], value)
    try:
        blueprint = chz.Blueprint(TrainConfig).apply({"env": ENVIRONMENTS[env]})
        blueprint = blueprint.apply({k: chz.Castable(v) for k, v in given.items() if k != "env"})
        return blueprint.make()
    except TinsmithError:
        raise
    except (*CHZ_ERRORS, ValueError, TypeError) as error:
        raise ConfigError(" ".join(str(error).split())) from error


def split(words: Sequence[str]) -> dict[str, str]:
    """The words as keys and values; the last one wins when a key is given twice."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            near = difflib.get_close_matches(word.lstrip("-"), [key.name for key in keys()], n=1)
            hint = f" Did you mean {near[0]}=...?" if near else f" {HELP}"
            raise ConfigError(f"settings are written key=value (got {word!r}).{hint}")
        given[name.lstrip("-")] = value
    return given


def keys(env: type[EnvConfig] = DEFAULT) -> Iterator[Key]:
    """Every key in the order of the configuration, those of the environment included."""
    for key in _fields(TrainConfig):
        if key.name == "env":
            yield key
            yield from _fields(env, "env.")
        elif chz.is_chz(key.type):
            yield from _fields(key.type, f"{key.name}.")
        else:
            yield key


def _fields(config: Any, prefix: str = "") -> Iterator[Key]:
    for name, field in chz.chz_fields(config).items():
        # chz has no public way to a field's documentation.
        yield Key(prefix + name, field.final_type, field._doc)  # pyright: ignore[reportPrivateUsage]


def flat(config: TrainConfig) -> Json:
    """Every key with its resolved value, as it is written in run.json."""
    values = {key.name: _value(config, key.name) for key in keys(type(config.env))}
    values["optim.lr"] = config.learning_rate
    values["model_name"] = config.base_model
    return values


def _value(config: TrainConfig, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return type(value).__name__ if isinstance(value, EnvConfig) else value


def help_text() -> str:
    """Each key with its default and what it means."""
    default = parse([])
    rows = [(f"{key.name}={_shown(_value(default, key.name))}", _meaning(key)) for key in keys()]
    left = min(max(len(first) for first, _ in rows), 40) + 2
    width = max(shutil.get_terminal_size((100, 20)).columns - left - 4, 30)
    lines = [
        "tinsmith train key=value ...   train a model by reinforcement learning and watch it",
        "",
        "Every key has a default; these are all of them:",
    ]
    for first, meaning in rows:
        wrapped = textwrap.wrap(meaning, width) or [""]
        lines.append(f"  {first:<{left}}{wrapped[0]}")
        lines.extend(" " * (left + 2) + more for more in wrapped[1:])
    lines += [
        "",
        "The same command with the log_path of an earlier run goes on from its last checkpoint.",
    ]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _meaning(key: Key) -> str:
    if key.name == "env":
        return f"{key.doc}: {', '.join(ENVIRONMENTS)}"
    choices = typing.get_args(key.type) if typing.get_origin(key.type) is typing.Literal else ()
    return f"{key.doc} ({', '.join(map(str, choices))})" if choices else key.doc


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not near:  # the right word without its prefix, such as lr for optim.lr
        near = [key for key in known if key.rpartition(".")[2] == name]
    hint = f" Did you mean {near[0]}?" if near else f" {HELP}"
    return f"there is no setting {name!r}.{hint}"


def _check_value(key: Key, value: str) -> None:
    """Whether the text can be read as the key's type: a sentence of ours instead of chz's."""
    if typing.get_origin(key.type) is typing.Literal:
        choices = [str(choice) for choice in typing.get_args(key.type)]
        if value not in choices:
            raise ConfigError(one_of(key.name, value, choices))
        return
    kinds = typing.get_args(key.type) or (key.type,)
    if type(None) in kinds and value == "None":
        return
    if not any(_reads_as(kind, value) for kind in kinds):
        expected = " or ".join(_NAMES[kind] for kind in kinds if kind in _NAMES)
        raise ConfigError(f"{key.name} must be {expected} (got {value!r}).")


_NAMES: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "None",
}


def _reads_as(kind: Any, value: str) -> bool:
    if kind is bool:
        return value.lower() in ("true", "false", "t", "f", "1", "0")
    if kind in (int, float):
        try:
            return not math.isnan(kind(value))
        except ValueError:
            return False
    return kind is not type(None)
