"""Finds the command that was typed and imports only that one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

from tinsmith import __version__
from tinsmith.errors import ConfigError, TinsmithError

# name -> what it does, in the order a newcomer meets them; the module is tinsmith.cli.<name>
COMMANDS: dict[str, str] = {
    "train": "train a model by reinforcement learning and watch it",
    "sft": "teach a model by examples: supervised training on conversations",
    "eval": "try held-out problems with a run, a model or an endpoint",
    "chat": "talk to the model of a run",
    "envs": "list environments and datasets; check a grader",
    "runs": "list your runs; show, watch or stop one",
    "serve": "run the Tinker-compatible service by itself",
    "keys": "API keys for a service that others can reach",
    "export": "write a checkpoint as an adapter or as a whole model",
    "doctor": "say what this machine has and lacks",
}
FIRST_COMMAND = "tinsmith train env=MathConfig env.dataset=arithmetic batch_size=100 group_size=4"

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a TinsmithError becomes a sentence on stderr and its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except TinsmithError as error:
        print(f"tinsmith: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has left: nothing more can be said, and the interpreter must not try.
        sys.stdout = None
        return 0


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"tinsmith {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise ConfigError(_unknown(name))
    result = _load(name)(rest)
    sys.stdout.flush()
    return result or 0


def _load(name: str) -> Callable[[list[str]], int | None]:
    try:
        return importlib.import_module(f"tinsmith.cli.{name}").run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "tinsmith":
            raise
        raise ConfigError(
            f"`tinsmith {name}` needs the package {error.name}, which is not installed. "
            'Type: pip install "tinsmith[local]"'
        ) from error


def _unknown(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f" Did you mean `tinsmith {near[0]}`?" if near else ""
    return f"there is no command {name!r}; the commands are {', '.join(COMMANDS)}.{hint}"


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        "tinsmith trains language-model agents by reinforcement learning, on your own machine.\n\n"
        f"start here:\n  {FIRST_COMMAND}\n\n"
        f"commands:\n{rows}\n\n"
        "`tinsmith <command> --help` says more; `tinsmith --version` prints the version."
    )
