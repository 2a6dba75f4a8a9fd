"""The bytes each token stands for, read off a tokenizer's own rule for decoding."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TokenBytes: TypeAlias = Callable[[int], bytes]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "▁"


def token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    """A function from token id to bytes; an id that is in no vocabulary has none.

    A character may be spread over several tokens, so only bytes can be joined token by token.
    """
    added = {
        number: token.content.encode()
        for number, token in tokenizer.get_added_tokens_decoder().items()
    }
    known: dict[int, bytes] = dict(added)
    rule = _rule(tokenizer)

    def find(token: int) -> bytes:
        found = known.get(token)
        if found is None:
            piece = tokenizer.id_to_token(token) if 0 <= token < 2**32 else None
            if piece is None:  # not remembered: there is no end of them
                return b""
            found = known[token] = rule(token, piece)
        return found

    return find


def _rule(tokenizer: Tokenizer) -> Callable[[int, str], bytes]:
    kinds = _kinds(tokenizer)
    if "ByteLevel" in kinds:
        table = _byte_level_table()

        def byte_level(token: int, piece: str) -> bytes:
            if all(character in table for character in piece):
                return bytes(table[character] for character in piece)
            return piece.encode()

        return byte_level
    if kinds & {"ByteFallback", "Metaspace"}:

        def sentence_piece(token: int, piece: str) -> bytes:
            one = _BYTE_TOKEN.fullmatch(piece)
            return bytes([int(one[1], 16)]) if one else piece.replace(_SPACE_MARK, " ").encode()

        return sentence_piece
    return lambda token, piece: tokenizer.decode([token], skip_special_tokens=False).encode()


def _kinds(tokenizer: Tokenizer) -> set[str]:
    """The decoder's type, and the types inside it when it is a sequence."""
    decoder: Any = tokenizer.decoder
    if decoder is None:
        return set()
    state = json.loads(decoder.__getstate__())
    return {state["type"], *(inner["type"] for inner in state.get("decoders", ()))}


def _byte_level_table() -> dict[str, int]:
    """Byte-level vocabularies write a byte as itself where that is printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return table | {chr(0x100 + number): byte for number, byte in enumerate(others)}
