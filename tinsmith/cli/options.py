"""Runs a click command so that a wrong option is one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tinsmith.errors import ConfigError


def run_command(command: click.Command, name: str, argv: Sequence[str]) -> int:
    """The command's exit code; what is wrong with its arguments is a ConfigError."""
    try:
        result = command.main(list(argv), prog_name=f"tinsmith {name}", standalone_mode=False)
    except click.ClickException as error:
        raise ConfigError(
            f"{error.format_message()} `tinsmith {name} --help` lists the options."
        ) from None
    except click.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0
