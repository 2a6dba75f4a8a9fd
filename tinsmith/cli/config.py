"""Words of the command line to a configuration, or one sentence that says what is wrong with them."""

from __future__ import annotations

import difflib
import math
import operator
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import chz
from chz.blueprint import ConstructionException, ExtraneousBlueprintArg, InvalidBlueprintArg
from chz.field import Field
from chz.util import MISSING

from tinsmith.envs import DEFAULT, ENVIRONMENTS
from tinsmith.errors import ConfigError, TinsmithError, one_of
from tinsmith.records.files import Json
from tinsmith.rl.config import EnvConfig, TrainConfig

CHZ_ERRORS = (ConstructionException, ExtraneousBlueprintArg, InvalidBlueprintArg)
YES, NO = ("true", "t", "1"), ("false", "f", "0")
# Settings that trainers with this command line once had -> what to say of them.
GONE = {
    "minitb": "tasks in a terminal are not here yet; env=MathConfig trains on questions with answers, and "
    "env.dataset says which",
}

# key -> where the configuration has what it comes to: a path made absolute, a default that depends on another
RESOLVED = {
    "optim.lr": "learning_rate",
    "model_name": "base_model",
    "load_checkpoint_path": "first_weights",
}

Config = TypeVar("Config")


REQUIRED: Any = object()  # the default of a key that has none


@dataclass(frozen=True)
class Key:
    """One setting as it is typed."""

    name: str
    type: Any
    doc: str
    default: Any = REQUIRED


def parse(words: Sequence[str]) -> TrainConfig:
    """The training run that the words ask for; ConfigError is a sentence about the first wrong one."""
    return parse_into(TrainConfig, words)


def parse_into(target: type[Config], words: Sequence[str], command: str = "train") -> Config:
    """The configuration that the words ask for; `command` is whose help the sentences point to.

    A field named `env` takes the name of an environment, whose keys are then known too.
    """
    given = split(words, target, command)
    env = environment(target, given)
    known = {key.name: key for key in keys(target, env)}
    for name, key in known.items():
        if key.default is REQUIRED and name not in given and name != "env":
            raise ConfigError(f"{name}=... must be given: {key.doc}. {_see(command)}")
    values = {name: _read(known[name], text) for name, text in given.items() if name != "env"}
    try:
        return chz.Blueprint(target).apply({"env": env} if env else {}).apply(values).make()
    except TinsmithError:
        raise
    except (*CHZ_ERRORS, ValueError, TypeError) as error:
        raise ConfigError(" ".join(str(error).split())) from error


def split(
    words: Sequence[str], target: type = TrainConfig, command: str = "train"
) -> dict[str, str]:
    """The words as full key names and their text; the last one wins when a key is given twice.

    `batch-size=3`, `--batch-size=3` and `--batch_size 3` mean `batch_size=3`, a bare `--dry-run`
    means `dry_run=true`, and `max_tokens=5` means `env.max_tokens=5`.
    """
    pairs = list(_pairs(words, target, command))
    env = environment(target, {_underscored(name): text for name, text in pairs})
    known = [key.name for key in keys(target, env)]
    given: dict[str, str] = {}
    for name, text in pairs:
        full = full_name(name, known)
        if full is None:
            raise ConfigError(_unknown(_underscored(name), known, command))
        given[full] = text
    return given


def _pairs(words: Sequence[str], target: type, command: str) -> Iterator[tuple[str, str]]:
    """Every word, or a flag with the word after it, as the name typed and its text."""
    kinds = {key.name: key.type for key in every_key(target)}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, text = word.partition("=")
        bare = name.lstrip("-")
        if equals and bare:
            yield bare, text
        elif not equals and word.startswith("--") and bare:
            if kinds.get(full_name(bare, list(kinds)) or "") is bool:
                yield bare, rest.pop(0) if rest and rest[0].lower() in YES + NO else "true"
            elif rest and not rest[0].startswith("--"):
                yield bare, rest.pop(0)
            else:
                full = full_name(bare, list(kinds))
                if full is None:
                    raise ConfigError(_unknown(_underscored(bare), list(kinds), command))
                raise ConfigError(f"{word} must be followed by its value, as in {full}=... .")
        else:
            near = difflib.get_close_matches(_underscored(bare), list(kinds), n=1)
            hint = f"Did you mean {near[0]}=...?" if near else _see(command)
            raise ConfigError(f"settings are written key=value (got {word!r}). {hint}")


def full_name(name: str, known: Sequence[str]) -> str | None:
    """The key that a typed name means, the environment's without their prefix too; None for none."""
    name = _underscored(name)
    return next((full for full in (name, f"env.{name}") if full in known), None)


def _underscored(name: str) -> str:
    return name.replace("-", "_")


def has_env(target: type) -> bool:
    return "env" in chz.chz_fields(target)


def environment(target: type, given: Mapping[str, str]) -> type[EnvConfig] | None:
    """The environment asked for, or the usual one; None when the configuration has none."""
    if not has_env(target):
        return None
    name = given.get("env", DEFAULT.__name__)
    if name not in ENVIRONMENTS:
        raise ConfigError(one_of("env", name, list(ENVIRONMENTS)))
    return ENVIRONMENTS[name]


def keys(target: type = TrainConfig, env: type[EnvConfig] | None = None) -> Iterator[Key]:
    """Every key in the order of the configuration, those of the environment included."""
    for key in _fields(target):
        yield key
        if key.name == "env":
            yield from _fields(env or DEFAULT, "env.")


def every_key(target: type) -> Iterator[Key]:
    """The keys with those of every environment, whichever is asked for."""
    if not has_env(target):
        yield from keys(target)
        return
    for env in ENVIRONMENTS.values():
        yield from keys(target, env)


def _fields(config: Any, prefix: str = "", made: Any = None) -> Iterator[Key]:
    """The keys of one configuration class; `made` holds their defaults where it is part of another."""
    for name, field in chz.chz_fields(config).items():
        default = _default(field) if made is None else getattr(made, name)
        if chz.is_chz(field.final_type) and name != "env":
            nested = None if default is REQUIRED else default
            yield from _fields(field.final_type, f"{prefix}{name}.", nested)
        else:
            # chz has no public way to a field's documentation.
            doc = field._doc  # pyright: ignore[reportPrivateUsage]
            yield Key(prefix + name, field.final_type, doc, default)


def _default(field: Field) -> Any:
    # Nor is there one to a field's default.
    value, make = field._default, field._default_factory  # pyright: ignore[reportPrivateUsage]
    if callable(make):
        return make()
    return REQUIRED if value is MISSING else value


def flat(config: Any) -> Json:
    """Every key with its resolved value, as it is written in run.json."""
    env = type(config.env) if has_env(type(config)) else None
    return {key.name: value_of(config, key.name) for key in keys(type(config), env)}


def value_of(config: Any, name: str) -> Any:
    """The resolved value of one key, as JSON has it."""
    try:
        value = operator.attrgetter(RESOLVED.get(name, name))(config)
    except AttributeError:  # a configuration without this key resolved otherwise
        value = operator.attrgetter(name)(config)
    if isinstance(value, EnvConfig):
        return type(value).__name__
    return list(value) if isinstance(value, tuple) else value


def reproducing_command(config: Any, words: Sequence[str], command: str = "train") -> list[str]:
    """The words that make the same run again from any directory, in a run directory of its own."""
    given = split(words, type(config), command)
    values = {name: value_of(config, name) for name in given}
    kept = {
        name: values[name] if isinstance(values[name], str) else text
        for name, text in given.items()
        if name not in ("log_path", "dry_run")
    }
    return ["tinsmith", command, *(f"{name}={text}" for name, text in kept.items())]


def _see(command: str) -> str:
    return f"`tinsmith {command} --help` lists every key."


def _unknown(name: str, known: Sequence[str], command: str) -> str:
    first = name.split(".")[0]
    if first in GONE:
        return f"there is no setting {name!r}: {GONE[first]}."
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not near:  # the right word without its prefix, such as lr for optim.lr
        near = [key for key in known if key.rpartition(".")[2] == name]
    hint = f"Did you mean {near[0]}?" if near else _see(command)
    return f"there is no setting {name!r}. {hint}"


def _read(key: Key, text: str) -> Any:
    """The text as the key's type; ConfigError says what was expected."""
    if typing.get_origin(key.type) is typing.Literal:
        choices = {str(choice): choice for choice in typing.get_args(key.type)}
        if text not in choices:
            raise ConfigError(one_of(key.name, text, list(choices)))
        return choices[text]
    if typing.get_origin(key.type) is tuple:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return tuple(_read(Key(key.name, typing.get_args(key.type)[0], key.doc), p) for p in parts)
    kinds = typing.get_args(key.type) or (key.type,)
    if type(None) in kinds and text in ("None", "none"):
        return None
    for kind in sorted(kinds, key=lambda kind: kind is str):  # text reads as anything: last
        value = _read_as(kind, text)
        if value is not None:
            return value
    expected = " or ".join(_NAMES[kind] for kind in kinds if kind in _NAMES)
    raise ConfigError(f"{key.name} must be {expected} (got {text!r}).")


_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "None",
}


def _read_as(kind: Any, text: str) -> bool | int | float | str | None:
    """The text as one simple type; None when it is none."""
    if kind is bool:
        return True if text.lower() in YES else False if text.lower() in NO else None
    if kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            return None
        return None if math.isnan(value) else value
    return text if kind is str else None
