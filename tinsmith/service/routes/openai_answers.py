"""Answers of the OpenAI API: what each choice says, portion by portion, and its JSON."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tinsmith.service.engine.backend import ScoredTokens
from tinsmith.service.text.format import TextFormat
from tinsmith.service.text.speech import Detokenizer, Speech
from tinsmith.service.text.tool_calls import ToolCall, ToolCallFilter

Json: TypeAlias = dict[str, Any]
Alternatives: TypeAlias = Sequence[tuple[int, float]]  # token and log-probability, best first


def rows_of(topk: ScoredTokens | None) -> list[Alternatives] | None:
    """Alternatives at each place."""
    if topk is None:
        return None
    pairs = zip(topk.tokens.tolist(), topk.logprobs.tolist(), strict=True)
    return [list(zip(tokens, logprobs, strict=True)) for tokens, logprobs in pairs]


@dataclass(frozen=True)
class Scored:
    """A token with its log-probability, which the first token of a prompt has none of."""

    token: int
    logprob: float | None
    offset: int  # characters of text before it
    alternatives: Alternatives = ()


@dataclass(frozen=True)
class Said:
    """A portion of what a choice says. Text may lag behind the tokens it comes from."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    scored: tuple[Scored, ...] = ()

    def __add__(self, other: Said) -> Said:
        return Said(self.text + other.text, self.calls + other.calls, self.scored + other.scored)

    def __bool__(self) -> bool:
        return bool(self.text or self.calls or self.scored)


@dataclass
class Choice:
    """One answer of a request, as its tokens come."""

    index: int
    format: TextFormat
    speech: Speech
    offsets: Detokenizer
    tools: ToolCallFilter | None = None
    length: int = 0  # characters before the next token
    seen: int = 0  # tokens taken in
    calls: int = 0
    reason: str | None = None
    echoed: bool = False
    told: bool = False  # a portion of it was sent

    def feed(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float | None],
        alternatives: Sequence[Alternatives] | None = None,
    ) -> Said:
        self.seen += len(tokens)
        scored = self.score(tokens, logprobs, alternatives)
        return self._divide(self.speech.feed(tokens), scored, last=False)

    def finish(self, reason: Literal["stop", "length"]) -> Said:
        said = self._divide(self.speech.finish(), (), last=True)
        stopped = reason == "stop" or self.speech.stopped
        self.reason = ("tool_calls" if self.calls else "stop") if stopped else "length"
        return said

    def score(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float | None],
        alternatives: Sequence[Alternatives] | None = None,
    ) -> tuple[Scored, ...]:
        """Tokens with their places in the text; also for those of a prompt that is echoed."""
        out: list[Scored] = []
        for number, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            others = alternatives[number] if alternatives else ()
            out.append(Scored(token, logprob, self.length, others))
            self.length += len(self.offsets.feed([token]))
        return tuple(out)

    def _divide(self, text: str, scored: tuple[Scored, ...], *, last: bool) -> Said:
        if self.tools is None:
            return Said(text, (), scored)
        pieces = self.tools.feed(text)
        if last:
            pieces += self.tools.finish()
        calls = tuple(piece for piece in pieces if isinstance(piece, ToolCall))
        self.calls += len(calls)
        return Said("".join(p for p in pieces if isinstance(p, str)), calls, scored)


# ── shapes ───────────────────────────────────────────────────────────────────────────────────


def usage(prompt: int, completion: int, cached: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error_body(
    message: str, status: int, param: str | None = None, code: str | None = None
) -> Json:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def completion_choice(choice: Choice, said: Said, reason: str | None, *, logprobs: bool) -> Json:
    """The whole of a choice, or a portion: both look alike."""
    return {
        "index": choice.index,
        "text": said.text,
        "logprobs": _completion_logprobs(choice.format, said.scored) if logprobs else None,
        "finish_reason": reason,
    }


def chat_choice(choice: Choice, said: Said, *, logprobs: bool) -> Json:
    message: Json = {"role": "assistant", "content": said.text, "refusal": None}
    if said.calls:
        message["content"] = said.text or None
        message["tool_calls"] = [_call(call) for call in said.calls]
    return {
        "index": choice.index,
        "message": message,
        "logprobs": _chat_logprobs(choice.format, said.scored) if logprobs else None,
        "finish_reason": choice.reason,
    }


def chat_delta(choice: Choice, said: Said, reason: str | None, *, logprobs: bool) -> Json:
    delta: Json = {} if choice.told else {"role": "assistant", "content": ""}
    if said.text:
        delta["content"] = said.text
    if said.calls:
        first = choice.calls - len(said.calls)
        delta["tool_calls"] = [
            {"index": first + number, **_call(call)} for number, call in enumerate(said.calls)
        ]
    scored = logprobs and bool(said.scored)
    return {
        "index": choice.index,
        "delta": delta,
        "logprobs": _chat_logprobs(choice.format, said.scored) if scored else None,
        "finish_reason": reason,
    }


def _call(call: ToolCall) -> Json:
    return {
        "id": f"call_{uuid.uuid4().hex}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _chat_logprobs(text: TextFormat, scored: Sequence[Scored]) -> Json:
    def entry(token: int, logprob: float | None) -> Json:
        raw = text.bytes_of(token)
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}

    return {
        "content": [
            {
                **entry(one.token, one.logprob),
                "top_logprobs": [entry(*other) for other in one.alternatives],
            }
            for one in scored
        ],
        "refusal": None,
    }


def _completion_logprobs(text: TextFormat, scored: Sequence[Scored]) -> Json:
    def word(token: int) -> str:
        """Part of a character is written as its bytes, so that two such tokens are not one key."""
        raw = text.bytes_of(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    # A prompt's first token has no alternatives, as it has no log-probability.
    tops: list[dict[str, float | None]] = [
        {word(token): logprob for token, logprob in one.alternatives} for one in scored
    ]
    for one, top in zip(scored, tops, strict=True):
        if top:  # the chosen token stands among them, likely or not
            top.setdefault(word(one.token), one.logprob)
    return {
        "tokens": [word(one.token) for one in scored],
        "token_logprobs": [one.logprob for one in scored],
        "top_logprobs": [top or None for top in tops] if any(tops) else None,
        "text_offset": [one.offset for one in scored],
    }
