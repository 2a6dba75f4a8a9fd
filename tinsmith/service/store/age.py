"""Files that only their recipients can read, in the format of age (https://age-encryption.org)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinsmith.errors import RequestError

SUFFIX = ".age"
MOST = 10  # recipients


def encrypt_directory(directory: Path, recipients: Sequence[str]) -> None:
    """Encrypt the adapter's files to all recipients; nothing readable stays in the directory."""
    age = _library()
    keys = [_recipient(age, text) for text in recipients]
    if len(keys) > MOST:
        raise RequestError(f"there may be {MOST} age_encryption_recipients (got {len(keys)}).")
    for file in sorted(directory.iterdir()):
        if file.name.startswith("adapter_"):
            age.encrypt_file(str(file), f"{file}{SUFFIX}", keys)
        file.unlink()


def _library() -> Any:  # pyrage has no types for its submodules
    try:
        return importlib.import_module("pyrage")
    except ModuleNotFoundError:
        raise RequestError(
            "age_encryption_recipients need the package pyrage where the service runs "
            "(pip install pyrage); leave them out to save weights that are not encrypted."
        ) from None


def _recipient(age: Any, text: str) -> Any:
    kind = age.ssh if text.startswith("ssh-") else age.x25519
    try:
        return kind.Recipient.from_str(text)
    except age.RecipientError as error:
        raise RequestError(
            f"{text[:80]!r} is not an age recipient ({error}); expected a key like age1... or ssh-ed25519 ..."
        ) from None
