"""How much of a request is taken in: sizes of bodies, all bodies together, and how slowly they may come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import zstandard

from tinsmith.errors import RequestError
from tinsmith.service import metrics

MIB = 2**20
BODY = "tinsmith.body"  # where a request's scope keeps its BodyLease
SECONDS_TO_START = 30.0  # a body may take this long, and longer only by each MiB that comes
SLOWEST = 16 * 1024  # bytes a second, then
# A block of four bytes can say "this byte, 128 KiB of it": 2 KiB make at most 64 MiB in one go.
_SLICE = 2048
_WINDOW = 2**25  # what a sender may ask us to keep for looking back; the SDK needs 2 MiB


def _share_of_memory() -> int:
    return psutil.virtual_memory().total // 8


@dataclass(frozen=True)
class Limits:
    """Bytes. JSON grows up to fortyfold when it is read, so less of it is taken than of protobuf."""

    body_bytes: int = 256 * MIB  # one body, after decompression
    data_bytes: int = 32 * MIB  # one JSON body with data or prompts
    json_bytes: int = 4 * MIB  # any other JSON body
    bodies_bytes: int = 0  # all bodies being read and decoded; 0: an eighth of the machine's memory
    head_bytes: int = 64 * 1024  # request line and headers

    @property
    def together(self) -> int:
        """For all bodies; at least one of the largest fits."""
        return max(self.bodies_bytes or _share_of_memory(), self.body_bytes)


class Bodies:
    """The bytes of all bodies being read and decoded; of the event loop alone."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most = limits.together
        self.held = 0
        self.requests = 0  # being answered

    def lease(self) -> BodyLease:
        return BodyLease(self.limits, self)

    def take(self, size: int) -> None:
        if self.held + size > self._most:
            metrics.count("tinsmith_refused_requests_total", reason="busy")
            raise RequestError(
                f"requests of {self.held // MIB} MiB are being read and {self._most // MIB} MiB are "
                "the most at a time; ask again in a moment.",
                status=429,
            )
        self.held += size


class BodyLease:
    """What one request holds, until it is answered."""

    def __init__(self, limits: Limits, bodies: Bodies | None = None) -> None:
        self.limits = limits
        self._bodies = bodies
        self.held = 0
        self.whole = False  # whether the body was read to its end

    def take(self, size: int) -> None:
        if self._bodies is not None:
            self._bodies.take(size)
            self.held += size

    def release(self) -> None:
        if self._bodies is not None:
            self._bodies.held -= self.held
            self.held = 0


class Unpacker:
    """Zstandard in small steps, so that a bomb is seen before it goes off; frames may follow each other."""

    def __init__(self) -> None:
        self._frame = self._new()
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        for start in range(0, len(chunk), _SLICE):
            rest = chunk[start : start + _SLICE]
            while rest:
                if self._frame.eof:
                    self._frame = self._new()
                self._begun = True
                try:
                    part = self._frame.decompress(rest)
                except zstandard.ZstdError as error:
                    raise RequestError(f"the body is not zstd: {error}.") from None
                rest = self._frame.unused_data if self._frame.eof else b""
                if part:
                    yield part

    def finish(self) -> None:
        """Half a frame is not what was sent."""
        if self._begun and not self._frame.eof:
            raise RequestError("the body's zstd frame is cut off; send it whole.")

    @staticmethod
    def _new() -> zstandard.ZstdDecompressionObj:
        return zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
