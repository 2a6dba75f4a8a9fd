"""What a failure says to people: the service's own sentence where there is one."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
