"""What is asked in a URL (pages, scopes, days) and how times are written in answers."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from starlette.requests import Request

from tinsmith.errors import RequestError, one_of
from tinsmith.service.routes.http import Query

MOST = 1000  # rows in one page
SCOPES = ("owned", "accessible")
PAGE = (Query("limit", "integer"), Query("offset", "integer"))
SCOPE = (Query("access_scope", one_of=SCOPES),)


def page(request: Request, usual: int) -> tuple[int, int]:
    """limit and offset; more than a page holds is cut, which the answer's cursor says."""
    limit = _number(request, "limit", usual)
    return min(limit, MOST), _number(request, "offset", 0)


def _number(request: Request, name: str, usual: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise RequestError(f"{name} must be a number from 0 (got {text[:40]!r}).", status=422)
    return int(text)


def choice(request: Request, name: str, allowed: list[str]) -> str:
    """One of `allowed`; the first when nothing is said."""
    given = request.query_params.get(name, allowed[0])
    if given not in allowed:
        raise RequestError(one_of(name, given[:40], allowed), status=422)
    return given


def accessible(request: Request) -> bool:
    """Whether what others made public is asked for, too."""
    return choice(request, "access_scope", list(SCOPES)) == "accessible"


def day(request: Request) -> tuple[float, float]:
    """The first moment of a day, today unless said otherwise, and of the next; by UTC."""
    text = request.query_params.get("day")
    try:
        wanted = datetime.now(UTC).date() if text is None else date.fromisoformat(text)
        start = datetime(wanted.year, wanted.month, wanted.day, tzinfo=UTC)
        return start.timestamp(), (start + timedelta(days=1)).timestamp()
    except (ValueError, OverflowError):
        raise RequestError("day must be a date like 2026-07-13.", status=422) from None


def moment(request: Request, name: str) -> datetime:
    """A time as the SDK writes it; one without a zone is taken as UTC."""
    try:
        at = datetime.fromisoformat(request.query_params.get(name, ""))
    except ValueError:
        raise RequestError(
            f"{name} must be a time like 2026-07-13T00:00:00Z.", status=422
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
