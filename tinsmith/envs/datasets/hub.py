"""Rows through the `datasets` package: from the hub, its caches on this machine, or a directory in its layout."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from tinsmith.envs.datasets.files import Raw
from tinsmith.errors import ConfigError

REACH_SECONDS = (
    5.0  # how long the hub may take to answer a connection before it counts as out of reach
)


class NotHere(Exception):
    """The rows are not on this machine and cannot be fetched; says why."""


def read(path: str, config: str | None, split: str, columns: Sequence[str]) -> Iterator[Raw]:
    """The rows of one split. NotHere when neither the hub nor a cache has them."""
    data = _load(path, config, split)
    print(f"{path}: reading {len(data)} rows", file=sys.stderr, flush=True)
    yield from only(data, columns)


def only(data: Any, columns: Sequence[str]) -> Any:
    """The data without the columns nobody asked for, which may be long; all of them when one is missing."""
    whole = set(data.column_names)
    return data.select_columns(list(columns)) if columns and whole.issuperset(columns) else data


def split_names(path: str, config: str | None) -> list[str]:
    package = _package()
    with _reachable(package, path) as away:
        try:
            return list(package.get_dataset_split_names(path, config))
        except _failures(package) as error:
            local = _snapshot(path) if away else None
            if local is None:
                raise _wrong(path, config, None, error, away) from error
        return list(package.get_dataset_split_names(local, config))


def saved(folder: Path) -> bool:
    """Whether a directory was written by `save_to_disk`."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def read_saved(folder: Path) -> dict[str, Any]:
    """The splits of a directory that `save_to_disk` wrote; a single one counts as `train`."""
    try:
        package = _package()
    except NotHere as error:
        raise ConfigError(f"{folder} cannot be read: {error}.") from error
    try:
        data = package.load_from_disk(str(folder))
    except _failures(package) as error:
        raise ConfigError(f"{folder} cannot be read: {error}. Check the directory.") from error
    return dict(data) if isinstance(data, package.DatasetDict) else {"train": data}


def _load(path: str, config: str | None, split: str) -> Any:
    package = _package()
    named = ", ".join(part for part in (config, split) if part)
    print(f"{path}: loading {named} ...", file=sys.stderr, flush=True)
    with _reachable(package, path) as away:
        try:
            return package.load_dataset(path, config, split=split)
        except _failures(package) as error:
            local = _snapshot(path) if away else None
            if local is None:
                raise _wrong(path, config, split, error, away) from error
        try:
            return package.load_dataset(local, config, split=split)
        except _failures(package) as error:
            raise _wrong(path, config, split, error, "") from error


def _package() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise NotHere('the datasets package is missing: pip install "tinsmith[math]"') from error
    datasets.disable_progress_bars()
    return datasets


def _failures(package: Any) -> tuple[type[Exception], ...]:
    import httpx

    return (OSError, ValueError, RuntimeError, httpx.HTTPError, package.exceptions.DatasetsError)


def _wrong(
    path: str, config: str | None, split: str | None, error: Exception, away: str
) -> Exception:
    """What to say: out of reach, or there but without what was asked for."""
    if away:
        return NotHere(away)
    missing = _package().exceptions.DatasetNotFoundError
    if isinstance(error, missing) and "gated" not in str(error):
        return ConfigError(f"env.dataset: there is no dataset {path} on the hub. Check the name.")
    if isinstance(error, ValueError):
        asked = " and ".join(
            f"env.{key}={value}"
            for key, value in (("subset", config), ("train_split", split))
            if value
        )
        return ConfigError(f"{path} does not have {asked}: {' '.join(str(error).split())}")
    return NotHere(" ".join(str(error).split()))


def _snapshot(path: str) -> str | None:
    """Where a copy of the hub's files lies on this machine, as `hf download` leaves it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(path, repo_type="dataset", local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        return None


@contextmanager
def _reachable(package: Any, path: str) -> Iterator[str]:
    """Without a hub, caches are asked at once, not after minutes of retries; yields why it is away."""
    before = package.config.HF_HUB_OFFLINE
    away = ""
    if not Path(path).is_dir() and before:
        away = "HF_HUB_OFFLINE is set"
    elif not Path(path).is_dir() and not _answers(package.config.HF_ENDPOINT):
        away = "the hub does not answer"
    package.config.HF_HUB_OFFLINE = before or bool(away)
    try:
        yield away
    finally:
        package.config.HF_HUB_OFFLINE = before


def _answers(endpoint: str) -> bool:
    """Whether a connection to the hub, or to the proxy on the way to it, comes about in a few seconds."""
    url = urlsplit(endpoint)
    proxy = getproxies().get(url.scheme)
    if proxy:
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    port = url.port or (443 if url.scheme == "https" else 80)
    answered = threading.Event()

    def connect() -> None:
        try:
            with socket.create_connection((url.hostname or "", port), timeout=REACH_SECONDS):
                answered.set()
        except OSError:
            return

    # In a thread, as looking up a name has no time limit of its own.
    asking = threading.Thread(target=connect, daemon=True)
    asking.start()
    asking.join(REACH_SECONDS)
    return answered.is_set()
