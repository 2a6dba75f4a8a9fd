"""Speech: the same tokens give the same text in any portions, and nothing of a stop string gets out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

import tinsmith
from tinsmith.service.text.speech import Speech
from tinsmith.service.text.token_bytes import TokenBytes, token_bytes
from tinsmith.service.text.tool_calls import CLOSE, OPEN, ToolCall, ToolCallFilter

TINY = Tokenizer.from_file(str(Path(tinsmith.__file__).parent / "tiny" / "tokenizer.json"))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SHARP = st.text("aé€😀 \n", min_size=1, max_size=4)  # one to four bytes a character


def sentence_piece() -> Tokenizer:
    """Some whole pieces, and every byte."""
    pieces = ["<unk>", "▁", "a", "é", "▁a", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


PIECES = sentence_piece()


def portions(draw: st.DrawFn, tokens: list[int]) -> list[list[int]]:
    cuts = sorted(draw(st.lists(st.integers(0, len(tokens)), max_size=len(tokens) + 1)))
    edges = [0, *cuts, len(tokens)]
    return [tokens[a:b] for a, b in pairwise(edges)]


@st.composite
def in_portions(draw: st.DrawFn, tokens: st.SearchStrategy[list[int]]) -> list[list[int]]:
    return portions(draw, draw(tokens))


def say(bytes_of: TokenBytes, portions: list[list[int]], stops: list[str]) -> tuple[list[str], str]:
    speech = Speech(bytes_of, stops=stops)
    said = [speech.feed(portion) for portion in portions]
    said.append(speech.finish())
    return said, "".join(said)


@given(st.data(), TEXTS)
def test_any_text_in_any_portions_comes_out_as_it_was(data: st.DataObject, text: str) -> None:
    tokens = TINY.encode(text).ids
    split = data.draw(in_portions(st.just(tokens)))
    assert say(token_bytes(TINY), split, [])[1] == text


@given(in_portions(st.lists(st.integers(0, 758), max_size=40)))
def test_any_tokens_come_out_as_the_tokenizer_decodes_them(split: list[list[int]]) -> None:
    whole = TINY.decode([token for part in split for token in part], skip_special_tokens=False)
    assert say(token_bytes(TINY), split, [])[1] == whole


@given(in_portions(st.lists(st.integers(1, 260), max_size=40)))
def test_sentence_pieces_and_their_bytes_do_not_depend_on_portions(split: list[list[int]]) -> None:
    tokens = [token for part in split for token in part]
    assert say(token_bytes(PIECES), split, [])[1] == say(token_bytes(PIECES), [tokens], [])[1]


@given(st.data(), TEXTS)
def test_text_in_bytes_of_sentence_pieces(data: st.DataObject, text: str) -> None:
    tokens = [5 + byte for byte in text.encode()]
    split = data.draw(in_portions(st.just(tokens)))
    assert say(token_bytes(PIECES), split, [])[1] == text == PIECES.decode(tokens)


@given(st.data(), st.lists(SHARP, max_size=12), st.lists(SHARP, min_size=1, max_size=3))
def test_speech_ends_before_the_first_stop_string(
    data: st.DataObject, words: list[str], stops: list[str]
) -> None:
    text = "".join(words)
    tokens = [token for character in text for token in TINY.encode(character).ids]
    said, whole = say(token_bytes(TINY), data.draw(in_portions(st.just(tokens))), stops)
    one_by_one = say(token_bytes(TINY), [[token] for token in tokens], stops)[1]
    assert whole == one_by_one
    assert text.startswith(whole)
    assert not any(stop in whole for stop in stops)
    assert whole == text or any(text.startswith(whole + stop) for stop in stops)
    for number in range(len(said)):  # nothing that was said is ever taken back
        assert text.startswith("".join(said[:number]))


BLOCKS = st.sampled_from(
    [
        f'{OPEN}\n{{"name": "f", "arguments": {{"x": 1}}}}\n{CLOSE}',
        f"{OPEN}broken{CLOSE}",
        OPEN,
        CLOSE,
        "<tool_",
        "text",
        " ",
        "\n",
        "é",
    ]
)


@given(st.data(), st.lists(BLOCKS, max_size=8))
def test_tool_calls_do_not_depend_on_portions(data: st.DataObject, blocks: list[str]) -> None:
    text = "".join(blocks)

    def split(parts: list[str]) -> tuple[str, list[ToolCall]]:
        found = ToolCallFilter()
        pieces = [piece for part in parts for piece in found.feed(part)] + found.finish()
        calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
        return "".join(piece for piece in pieces if isinstance(piece, str)), calls

    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    edges = [0, *cuts, len(text)]
    parts = [text[a:b] for a, b in pairwise(edges)]
    whole = split([text])
    assert split(parts) == whole
    assert split(list(text)) == whole
    if not whole[1]:
        assert whole[0] == text  # what is no call is text, to the letter
