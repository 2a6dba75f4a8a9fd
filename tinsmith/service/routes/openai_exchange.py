"""One request of the OpenAI API from its prompts to its answer, whole or as events."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import orjson

from tinsmith.errors import ServiceError, TinsmithError
from tinsmith.service.core import Service
from tinsmith.service.engine.backend import ModelInfo, Partial, SampleJob, SampleResult
from tinsmith.service.routes.connection import merged
from tinsmith.service.routes.openai_answers import (
    Choice,
    Json,
    Said,
    chat_choice,
    chat_delta,
    completion_choice,
    error_body,
    rows_of,
    usage,
)
from tinsmith.service.routes.openai_types import ApiError, Generation
from tinsmith.service.tenants import Sampler
from tinsmith.service.text.format import TextFormat
from tinsmith.service.text.speech import Detokenizer, Speech
from tinsmith.service.text.tool_calls import ToolCallFilter


@dataclass(frozen=True)
class Target:
    """Who answers: weights, and how their base model writes."""

    sampler: Sampler
    info: ModelInfo
    format: TextFormat


@dataclass(frozen=True)
class Wanted:
    """What a request wants of its answer, as far as the two kinds of request differ."""

    chat: bool
    max_tokens: int | None  # 0: nothing beyond the prompt
    logprobs: bool
    alternatives: int = 0  # log-probabilities of the likeliest tokens at each place
    tools: bool = False
    echo: tuple[str, ...] | None = None  # the texts of the prompts


class Exchange:
    """Prompts in, choices out; each prompt has `n` choices, numbered one prompt after the other."""

    def __init__(
        self,
        service: Service,
        target: Target,
        asked: Generation,
        wanted: Wanted,
        prompts: Sequence[tuple[int, ...]],
    ) -> None:
        self._service = service
        self._target = target
        self._asked = asked
        self._wanted = wanted
        self._jobs = [self._job(prompt) for prompt in prompts]
        self._choices = [self._choice(i) for i in range(len(prompts) * asked.choices)]
        self._cached = 0
        self._head: Json = {
            "id": f"{'chatcmpl' if wanted.chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion" if wanted.chat else "text_completion",
            "created": int(time.time()),
            "model": asked.model,
            "system_fingerprint": None,
        }

    def _job(self, prompt: tuple[int, ...]) -> SampleJob:
        asked, wanted, sampler = self._asked, self._wanted, self._target.sampler
        self._check_length(prompt)
        stops = (*asked.stops, *(asked.stop_token_ids or ()), *self._target.format.eos_ids)
        prompt_scores = wanted.echo is not None and wanted.logprobs
        return SampleJob(
            base_model=sampler.base_model,
            weights=sampler.weights,
            prompt=prompt,
            num_samples=asked.choices,
            max_tokens=1 if wanted.max_tokens == 0 else wanted.max_tokens,
            temperature=1.0 if asked.temperature is None else asked.temperature,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            top_k=asked.top_k or -1,
            stop=() if asked.ignore_eos else stops or None,
            seed=asked.seed,
            prompt_logprobs=prompt_scores,
            topk_prompt_logprobs=wanted.alternatives if prompt_scores else 0,
            topk_sample_logprobs=wanted.alternatives,
            # A prompt's scores come with the end result only, and the prompt comes first.
            stream=bool(asked.stream) and not prompt_scores,
        )

    def _check_length(self, prompt: tuple[int, ...]) -> None:
        info, tokens = self._target.info, self._wanted.max_tokens or 1
        if len(prompt) + tokens > info.max_context:
            raise ApiError(
                f"the prompt has {len(prompt)} tokens and max_tokens is {tokens}: together more than "
                f"the context of {info.name} ({info.max_context}); shorten one of them.",
                param="messages" if self._wanted.chat else "prompt",
                code="context_length_exceeded",
            )

    def _choice(self, index: int) -> Choice:
        text, asked = self._target.format, self._asked
        silent = text.special
        if not asked.ignore_eos:  # whatever ends the answer is not part of its text
            silent |= {*(asked.stop_token_ids or ()), *self._target.info.eos_ids, *text.eos_ids}
        return Choice(
            index=index,
            format=text,
            speech=Speech(text.bytes_of, silent, asked.stops),
            offsets=Detokenizer(text.bytes_of, silent),
            tools=ToolCallFilter() if self._wanted.tools else None,
        )

    # ── what is said ─────────────────────────────────────────────────────────────────────────

    async def _items(self) -> AsyncGenerator[tuple[int, Partial | SampleResult]]:
        streams = [self._service.generate(self._target.sampler, job) for job in self._jobs]
        async with aclosing(merged(streams)) as items:
            async for item in items:
                yield item

    def _finish(self, number: int, result: SampleResult) -> list[tuple[Choice, Said, Said]]:
        """Of each choice of a prompt: the echo, and what was not said before."""
        self._cached += result.cached_tokens
        first = number * self._asked.choices
        out: list[tuple[Choice, Said, Said]] = []
        for sample, sequence in enumerate(result.sequences):
            choice = self._choices[first + sample]
            echo, said = self._echo(choice, number, result), Said()
            if self._wanted.max_tokens != 0:
                seen, rows = choice.seen, rows_of(sequence.topk)
                said = choice.feed(
                    sequence.tokens[seen:], sequence.logprobs[seen:], rows and rows[seen:]
                )
            out.append((choice, echo, said + choice.finish(sequence.stop_reason)))
        return out

    def _echo(self, choice: Choice, number: int, result: SampleResult | None) -> Said:
        """The prompt of a choice, once, if it is wanted."""
        texts = self._wanted.echo
        if texts is None or choice.echoed:
            return Said()
        choice.echoed = True
        scored = ()
        if result is not None and result.prompt_logprobs is not None:
            prompt = self._jobs[number].prompt
            rows = rows_of(result.topk_prompt)
            scored = choice.score(prompt, result.prompt_logprobs, rows and [(), *rows])
        choice.length = len(texts[number])
        return Said(texts[number], (), scored)

    def _usage(self) -> Json:
        prompts = sum(len(job.prompt) for job in self._jobs)
        return usage(prompts, sum(choice.seen for choice in self._choices), self._cached)

    # ── the answer as a whole ────────────────────────────────────────────────────────────────

    async def whole(self) -> Json:
        done: dict[int, Json] = {}
        async with aclosing(self._items()) as items:
            async for number, item in items:
                if isinstance(item, SampleResult):
                    for choice, echo, said in self._finish(number, item):
                        done[choice.index] = self._whole_choice(choice, echo, said)
        choices = [done[index] for index in sorted(done)]
        ids = self._prompt_ids(0) if self._wanted.chat else {}
        return {**self._head, "choices": choices, "usage": self._usage(), **ids}

    def _whole_choice(self, choice: Choice, echo: Said, said: Said) -> Json:
        logprobs = self._wanted.logprobs
        if self._wanted.chat:
            return chat_choice(choice, said, logprobs=logprobs) | self._token_ids(said)
        body = completion_choice(choice, echo + said, choice.reason, logprobs=logprobs)
        return body | self._token_ids(said) | self._prompt_ids(choice.index)

    def _token_ids(self, said: Said) -> Json:
        wanted = self._asked.return_token_ids
        return {"token_ids": [one.token for one in said.scored]} if wanted else {}

    def _prompt_ids(self, index: int) -> Json:
        prompt = self._jobs[index // self._asked.choices].prompt
        return {"prompt_token_ids": list(prompt)} if self._asked.return_token_ids else {}

    # ── the answer as events ─────────────────────────────────────────────────────────────────

    async def events(self) -> AsyncGenerator[bytes]:
        """Server-sent events; a failure after the first is an event, before it an exception."""
        begun = False
        try:
            async with aclosing(self._items()) as items:
                async for number, item in items:
                    for event in self._events_of(number, item):
                        begun = True
                        yield event
            if self._asked.wants_usage:
                yield self._event([], {"usage": self._usage()})
        except TinsmithError as error:
            if not begun:
                raise
            status = 503 if isinstance(error, ServiceError) else 400
            yield _sent(error_body(str(error), status))
        yield b"data: [DONE]\n\n"

    def _events_of(self, number: int, item: Partial | SampleResult) -> list[bytes]:
        if isinstance(item, Partial):
            choice = self._choices[number * self._asked.choices + item.sample]
            echo = self._echo(choice, number, None)
            said = choice.feed(item.tokens, item.logprobs, rows_of(item.topk))
            tokens_shown = self._wanted.logprobs or self._asked.return_token_ids
            if echo or said.text or said.calls or tokens_shown or not choice.told:
                return [self._chunk(choice, echo, said, None)]
            return []
        out: list[bytes] = []
        for choice, echo, said in self._finish(number, item):
            if echo or said:
                out.append(self._chunk(choice, echo, said, None))
            out.append(self._chunk(choice, Said(), Said(), choice.reason))
        return out

    def _chunk(self, choice: Choice, echo: Said, said: Said, reason: str | None) -> bytes:
        logprobs = self._wanted.logprobs
        ids = {} if choice.told else self._prompt_ids(choice.index)
        if self._wanted.chat:
            body, more = chat_delta(choice, said, reason, logprobs=logprobs), ids
        else:
            body = completion_choice(choice, echo + said, reason, logprobs=logprobs)
            body, more = body | ids, {}
        choice.told = True
        return self._event([body | self._token_ids(said)], more)

    def _event(self, choices: list[Json], more: Json) -> bytes:
        kind = "chat.completion.chunk" if self._wanted.chat else "text_completion"
        none = {"usage": None} if self._asked.wants_usage else {}
        return _sent({**self._head, "object": kind, "choices": choices, **none, **more})


def _sent(body: Json) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
