"""Work on a service: connects, watches that a local one lives, and takes leave of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from tinsmith import settings
from tinsmith.errors import ServiceError

if TYPE_CHECKING:
    import tinker

T = TypeVar("T")
Ending: TypeAlias = Literal["success", "errored", "interrupted"]

GOODBYE_SECONDS = 5.0
WATCH_SECONDS = 2.0  # between two looks at whether the local service lives


class Session:
    """A client of the service, and the loop its work runs in."""

    def __init__(
        self, service: tinker.ServiceClient, runner: asyncio.Runner, *, local: bool, hint: str
    ) -> None:
        self.service = service
        self._runner = runner
        self._local = local
        self._hint = hint

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work returns; Ctrl-C cancels it and is raised here."""
        watched = _while_local_service_lives(work, self._hint) if self._local else work
        return self._runner.run(watched)


@contextlib.contextmanager
def session(
    target: str | None, *, hint: str = "The same command starts it again."
) -> Iterator[Session]:
    """A session on the service; a local one is started on demand, and `hint` is what to do if it ends."""
    from tinsmith.connect import connect

    # Its exception says it once more, and an evaluation makes hundreds of requests.
    logging.getLogger("tinker.lib.retry_handler").addFilter(_not_repeated)
    service = connect(target, report=lambda line: print(line, file=sys.stderr, flush=True))
    ended: Ending = "errored"
    try:
        with asyncio.Runner() as runner:
            yield Session(service, runner, local=target in (None, "local"), hint=hint)
        ended = "success"
    except KeyboardInterrupt:
        ended = "interrupted"
        raise
    finally:
        _say_goodbye(service, ended)


def _not_repeated(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Request failed with non-retryable error")


def _say_goodbye(service: tinker.ServiceClient, ended: Ending) -> None:
    """End the session so that the service can forget it at once; it would find out anyway."""
    import tinker

    with contextlib.suppress(tinker.TinkerError, TimeoutError):
        service.close(ended).result(timeout=GOODBYE_SECONDS)


async def _while_local_service_lives(work: Coroutine[Any, Any, T], hint: str) -> T:
    """Fail when the local service's process ends: nobody restarts it, and the SDK would wait for hours."""
    from tinsmith.connect import read_address
    from tinsmith.runs.process import is_alive

    working = asyncio.ensure_future(work)
    address = read_address(settings.service_file())
    try:
        while not (await asyncio.wait({working}, timeout=WATCH_SECONDS))[0]:
            if address is not None and not is_alive(address.pid, address.started_at):
                raise ServiceError(
                    f"the local service (process {address.pid}) has ended. Its log is in "
                    f"{settings.service_directory()}. {hint}"
                )
        return working.result()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
