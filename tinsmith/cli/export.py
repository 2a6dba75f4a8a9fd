"""`tinsmith export`: a checkpoint as an adapter for PEFT, or as a whole model for transformers."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import click

from tinsmith import settings
from tinsmith.cli.options import run_command
from tinsmith.errors import ConfigError, ModelError, StorageError

SCHEME = "tinker://"
_PATH = re.compile(r"tinker://([\w.:-]+)/(weights|sampler_weights|external_weights)/([\w.-]+)")


@click.command(
    help="Write a checkpoint as files that other programs read.\n\nCHECKPOINT is a tinker:// path of the "
    "local service, which need not run, or a directory with an adapter. OUT must not exist yet."
)
@click.argument("checkpoint")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--merged",
    is_flag=True,
    help="A whole model: the adapter added to its base. [default: the adapter alone, for PEFT]",
)
@click.option(
    "--dtype",
    default="auto",
    show_default=True,
    help="Of a merged model: float32, bfloat16, float16, or auto (as the base model's).",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the service keeps its checkpoints. [default: ~/.tinsmith/service]",
)
def command(checkpoint: str, out: Path, merged: bool, dtype: str, directory: Path | None) -> int:
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} is there already; give a path that does not exist yet.")
    if dtype != "auto" and not merged:
        raise ConfigError("--dtype needs --merged: an adapter is written as it was saved.")
    source = _source(checkpoint, directory or settings.service_directory())
    with _whole_or_not_at_all(out) as staged:
        if merged:
            _export_merged(source, staged, dtype)
        else:
            _export_adapter(source, staged)
    print(_how_to_load(out, merged))
    return 0


def run(argv: Sequence[str]) -> int:
    return run_command(command, "export", argv)


def _source(checkpoint: str, service: Path) -> Path:
    """The directory of a checkpoint, given by its path in the service or on disk."""
    if not checkpoint.startswith(SCHEME):
        directory = Path(checkpoint).expanduser()
        if directory.is_dir():
            return directory
        raise ConfigError(
            f"{checkpoint!r} is no directory; give one, or a path like "
            "tinker://<run>/weights/<name> (`tinker checkpoint list` shows them)."
        )
    match = _PATH.fullmatch(checkpoint)
    if match is None or ".." in match.groups():
        raise ConfigError(
            f"{checkpoint!r} is not a checkpoint path; expected "
            "tinker://<run>/<weights, sampler_weights or external_weights>/<name>."
        )
    known = _saved(service / "service.sqlite")
    directory = service.joinpath("checkpoints", *match.groups())
    if checkpoint in known and directory.is_dir():
        return directory
    newest = f"the newest is {known[0]}" if known else "nothing was saved there"
    raise ConfigError(
        f"there is no checkpoint {checkpoint} in {service}; {newest}. "
        "--directory names the directory of another service."
    )


def _saved(database: Path) -> list[str]:
    """The paths of a service's checkpoints, newest first. It may be running: its database is only read."""
    if not database.is_file():
        raise ConfigError(
            f"there is no service in {database.parent}; --directory names another place."
        )
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as store:
            rows = store.execute("SELECT path FROM checkpoints ORDER BY created_at DESC").fetchall()
    except sqlite3.Error as error:
        raise StorageError(
            f"{database} cannot be read: {error}; give the checkpoint's directory instead."
        ) from error
    return [path for (path,) in rows]


@contextmanager
def _whole_or_not_at_all(out: Path) -> Iterator[Path]:
    """A directory to fill, which becomes `out` when that went well and vanishes when it did not."""
    staged = out.absolute().parent / f".{out.name}.{uuid.uuid4().hex}"
    try:
        staged.parent.mkdir(parents=True, exist_ok=True)
        yield staged
        os.rename(staged, out)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"{out} could not be written: {error.strerror or error}; free some space or check "
            "permissions, then try again."
        ) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _export_adapter(source: Path, to: Path) -> None:
    from tinsmith.service.engine.merge import AdapterFiles
    from tinsmith.service.engine.sources import find_source, weight_files
    from tinsmith.service.engine.weights import ADAPTER, CONFIG

    AdapterFiles.read(source)  # a checkpoint that cannot be read is not copied
    to.mkdir()
    shutil.copyfile(source / ADAPTER, to / ADAPTER)
    config = json.loads((source / CONFIG).read_text())
    base = find_source(config["base_model_name_or_path"])
    if not base.hub:  # a name that only tinsmith knows: say where transformers finds the model
        weight_files(base)
        config["base_model_name_or_path"] = str(base.directory)
    (to / CONFIG).write_text(json.dumps(config, indent=2))


def _export_merged(source: Path, to: Path, dtype: str) -> None:
    from safetensors import SafetensorError

    from tinsmith.service.engine.merge import merge

    with click.progressbar(length=100, label="merging", file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.update(done * 100 // total - bar.pos)

        try:
            merge(source, to, dtype, show)
        except SafetensorError as error:
            raise ModelError(f"the merged model could not be written: {error}.") from error


def _how_to_load(out: Path, merged: bool) -> str:
    where = repr(str(out))
    if merged:
        return (
            f"{out} holds a whole model. In Python:\n"
            "  from transformers import AutoModelForCausalLM, AutoTokenizer\n"
            f"  model = AutoModelForCausalLM.from_pretrained({where})\n"
            f"  tokenizer = AutoTokenizer.from_pretrained({where})"
        )
    return (
        f"{out} holds an adapter. In Python:\n"
        "  from peft import AutoPeftModelForCausalLM\n"
        f"  model = AutoPeftModelForCausalLM.from_pretrained({where})"
    )
