"""Tokens to text as they come: no half characters, nothing of a stop string, nothing taken back."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence

from tinsmith.service.text.token_bytes import TokenBytes


class Detokenizer:
    """Joins the bytes of tokens; the same tokens give the same text in whatever portions they come."""

    def __init__(self, bytes_of: TokenBytes, silent: Collection[int] = ()) -> None:
        self._bytes_of = bytes_of
        self._silent = silent
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, tokens: Sequence[int]) -> str:
        """The whole characters that these tokens complete; silent tokens have no text."""
        said = b"".join(self._bytes_of(token) for token in tokens if token not in self._silent)
        return self._decoder.decode(said)

    def finish(self) -> str:
        """What is left of a character that was never completed, as a replacement character."""
        return self._decoder.decode(b"", final=True)


class StopFilter:
    """Ends a text before the stop string that is complete first; holds back what may become one."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [
            (place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0
        ]
        if found:  # the one that was complete first, so that portions make no difference
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = max((partial_suffix(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


class Speech:
    """The text of one sample: detokenized, and ended before a stop string."""

    def __init__(
        self, bytes_of: TokenBytes, silent: Collection[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self._words = Detokenizer(bytes_of, silent)
        self._filter = StopFilter(stops)

    def feed(self, tokens: Sequence[int]) -> str:
        return self._filter.feed(self._words.feed(tokens))

    def finish(self) -> str:
        return self._filter.feed(self._words.finish()) + self._filter.finish()

    @property
    def stopped(self) -> bool:
        return self._filter.stopped


def partial_suffix(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
