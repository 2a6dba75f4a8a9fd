"""What can go wrong, as six kinds; every message says what was wrong, what was expected, what to do."""

from __future__ import annotations


class TinsmithError(Exception):
    """Base of all errors that are shown to people as a sentence, without a traceback."""

    exit_code = 2


class ConfigError(TinsmithError, ValueError):
    """A setting, a key on the command line or a file of the user's is wrong."""


class RequestError(TinsmithError, ValueError):
    """A request to the service cannot be carried out as asked; `status` is its HTTP answer."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[RequestError], tuple[str, int]]:
        return type(self), (str(self), self.status)


class ModelError(TinsmithError, ValueError):
    """A base model or checkpoint is missing, unreadable or of an unsupported kind."""


class ServiceError(TinsmithError, RuntimeError):
    """The service cannot be started or reached, or failed in the middle of the work."""

    exit_code = 1


class StorageError(TinsmithError, OSError):
    """A file could not be written or read: disk full, permissions, a damaged file."""

    exit_code = 1


class RunError(TinsmithError, RuntimeError):
    """A training run cannot start, go on or be found."""

    exit_code = 1


def one_of(what: str, given: str, allowed: list[str]) -> str:
    """The sentence for a wrong choice, with the nearest right one."""
    import difflib

    near = difflib.get_close_matches(given, allowed, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"{what} must be one of {', '.join(allowed)} (got {given!r}).{hint}"
