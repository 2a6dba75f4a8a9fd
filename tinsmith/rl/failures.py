"""What a failure says to people: the service's own sentence where there is one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tinsmith.errors import ServiceError

# How the SDK words a request that the service accepted and could not carry out.
_FAILED = re.compile(r"Request failed: (?P<reason>.*) for self\.request_id=", re.DOTALL)


def explain(error: BaseException) -> str:
    """The reason without the SDK's wrapping, or the error's type and words."""
    body = getattr(error, "body", None)  # what the service answered, on the SDK's status errors
    if isinstance(body, Mapping) and isinstance(detail := body.get("detail"), str):
        return detail
    if wrapped := _FAILED.match(str(error)):
        return wrapped["reason"]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@contextmanager
def sdk_failures(what: str) -> Iterator[None]:
    """What the SDK raises, as the sentence that ends the run."""
    import tinker

    try:
        yield
    except (tinker.TinkerError, ValueError) as error:
        raise ServiceError(
            f"{what}: {explain(error)} "
            "The same command with the same log_path goes on from the last checkpoint."
        ) from error
