"""`tinsmith keys`: the API keys of a service; make one, list them, revoke one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinsmith import settings
from tinsmith.cli.options import run_command
from tinsmith.cli.words import ago
from tinsmith.errors import ConfigError

if TYPE_CHECKING:
    from tinsmith.service.store.keys import Key, KeyRing

DATABASE = "service.sqlite"
PRIVATE = 0o600

where = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="The service's files, as in `tinsmith serve`. [default: ~/.tinsmith/service]",
)


def run(argv: list[str]) -> int:
    return run_command(keys, "keys", argv)


@click.group()
def keys() -> None:
    """The API keys of a service. A service that others can reach (`tinsmith serve --host`) answers only
    requests with a key; what is made with the keys of one owner is invisible to all others. It need not
    be restarted when keys change."""


@keys.command()
@click.argument("name")
@click.option(
    "--owner", help="Whose key it is; keys of one owner share everything. [default: NAME]"
)
@where
def create(name: str, owner: str | None, directory: Path | None) -> None:
    """Make a key and print it, this once: only its hash is kept."""
    with opened(directory or settings.service_directory()) as ring:
        key, secret = ring.create(name, owner)
    click.echo(secret)
    click.echo(
        f"This is key {key.id} ({key.name}) of {key.owner}. It is not shown again; "
        "use it as TINKER_API_KEY.",
        err=True,
    )


@keys.command("list")
@where
def list_(directory: Path | None) -> None:
    """List the keys, without their secrets."""
    home = directory or settings.service_directory()
    found: list[Key] = []
    if (home / DATABASE).exists():
        with opened(home) as ring:
            found = ring.all()
    if not found:
        click.echo("There are no keys. `tinsmith keys create NAME` makes one.")
        return
    now = time.time()
    rows = [("id", "name", "owner", "made", "used", "")]
    for key in found:
        used = "never" if key.last_used_at is None else ago(now - key.last_used_at)
        state = "" if key.revoked_at is None else f"revoked {ago(now - key.revoked_at)}"
        rows.append((str(key.id), key.name, key.owner, ago(now - key.created_at), used, state))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


@keys.command()
@click.argument("key_id", metavar="ID", type=click.IntRange(1, 2**31))
@where
def revoke(key_id: int, directory: Path | None) -> None:
    """Revoke a key; a service that runs refuses it at once."""
    with opened(directory or settings.service_directory()) as ring:
        key = ring.revoke(key_id)
    click.echo(f"Key {key.id} ({key.name}) of {key.owner} is revoked.")


@contextmanager
def opened(home: Path) -> Iterator[KeyRing]:
    """The keys in a service's directory, which is made if need be; the service may be running."""
    from tinsmith.service.store.keys import KeyRing
    from tinsmith.service.store.store import Store

    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private(home / DATABASE)
    except OSError as error:
        raise ConfigError(
            f"{home} cannot be used: {error.strerror}; choose a writable --directory."
        ) from None
    store = Store.open(home / DATABASE)
    try:
        yield KeyRing(store)
    finally:
        store.close()


def make_private(file: Path) -> None:
    """Only this user may read it; SQLite's other files take its permissions."""
    os.close(os.open(file, os.O_CREAT | os.O_RDWR, PRIVATE))
    file.chmod(PRIVATE)
