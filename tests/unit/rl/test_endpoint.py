"""OpenAI-compatible endpoints: messages out, text back, and every way of not answering as a sentence."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

import pytest

from tests.unit.rl.endpoint_server import KEY, Asked, asking, said
from tinsmith.chat.render import Message
from tinsmith.rl.endpoint import BLANK, EndpointPolicy, EndpointRenderer
from tinsmith.rl.endpoint_http import LONGEST_WAIT, TRIES, Endpoint, EndpointError, Reply, shown_url
from tinsmith.rl.rollouts import RolloutFailed

QUESTION: list[Message] = [{"role": "user", "content": "What is 2 + 2?"}]


async def ask(endpoint: Endpoint, **settings: Any) -> Reply:
    return await endpoint.say(
        QUESTION, **{"max_tokens": 5, "temperature": 0.5, "seed": 3, **settings}
    )


def refuse(status: int, message: str = "because"):
    return lambda asked: (status, {"error": {"message": message}})


# ── the request and its answer ──


async def test_the_conversation_goes_out_as_it_is():
    async with asking(lambda asked: said("4", tokens=2)) as (endpoint, requests):
        assert await ask(endpoint) == Reply("4", 2, cut_off=False)
    assert requests[0].path == "/v1/chat/completions"
    assert requests[0].headers["Authorization"] == f"Bearer {KEY}"
    assert requests[0].body == {
        "model": "small",
        "messages": QUESTION,
        "max_tokens": 5,
        "temperature": 0.5,
        "seed": 3,
    }


async def test_the_usual_temperature_and_no_key_are_not_sent():
    async with asking(lambda asked: said("4", why="length"), key=None) as (endpoint, requests):
        assert await ask(endpoint, temperature=1.0) == Reply("4", None, cut_off=True)
    assert "temperature" not in requests[0].body
    assert "Authorization" not in requests[0].headers


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, ""), ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab")],
)
async def test_content_may_be_missing_or_in_parts(content, text):
    body = {"choices": [{"message": {"content": content}}]}
    async with asking(lambda asked: (200, body)) as (endpoint, _):
        assert (await ask(endpoint)).text == text


@pytest.mark.parametrize("body", ["<html>hello</html>", {}, {"choices": []}, [1], {"choices": [3]}])
async def test_something_else_than_an_endpoint_is_said_to_be(body):
    async with asking(lambda asked: (200, body)) as (endpoint, _):
        with pytest.raises(EndpointError, match="not answer like an OpenAI-compatible endpoint"):
            await ask(endpoint)


async def test_settings_that_are_not_taken_are_renamed_or_left_out():
    def answer(asked: Asked):
        for name in ("max_tokens", "seed"):
            if name in asked.body:
                return 400, {"error": {"message": f"Unsupported parameter: '{name}'."}}
        return said("4")

    async with asking(answer) as (endpoint, requests):
        await ask(endpoint)
        await ask(endpoint)
    assert len(requests) == 4  # what was learnt once is known
    assert requests[-1].body["max_completion_tokens"] == 5


async def test_as_many_requests_as_allowed_are_in_progress_and_no_more():
    pairs, lock = threading.Barrier(2), threading.Lock()
    present, most = 0, 0

    def answer(asked: Asked):
        nonlocal present, most
        with lock:
            present += 1
            most = max(most, present)
        pairs.wait(20)  # breaks when no second one comes
        with lock:
            present -= 1
        return said("4")

    async with asking(answer, requests=2) as (endpoint, requests):
        await asyncio.gather(*(ask(endpoint) for _ in range(10)))
    assert len(requests) == 10
    assert most == 2


# ── trying again ──


@pytest.mark.parametrize("status", [429, 500, 503, 408])
async def test_what_may_pass_is_tried_again(status):
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def answer(asked: Asked):
        return said("4") if asked.number == 2 else (status, "busy", {"retry-after": "7"})

    async with asking(answer, sleep=sleep) as (endpoint, _):
        assert (await ask(endpoint)).text == "4"
    assert len(waits) == 2
    assert all(7 <= wait <= 10.5 for wait in waits)


async def test_patience_has_an_end():
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    answer = lambda asked: (429, {"error": {"message": "slow down"}}, {"retry-after": "9999"})  # noqa: E731
    async with asking(answer, sleep=sleep) as (endpoint, requests):
        with pytest.raises(EndpointError, match=r"HTTP 429 \(slow down\), also after 6 tries"):
            await ask(endpoint)
    assert len(requests) == TRIES
    assert max(waits) == LONGEST_WAIT


async def test_waits_double_and_differ_between_rollouts():
    waits: dict[int, list[float]] = {1: [], 2: []}
    async with asking(refuse(500)) as (endpoint, _):
        for seed, mine in waits.items():

            async def sleep(seconds: float, mine=mine) -> None:
                mine.append(seconds)

            endpoint._sleep = sleep
            with pytest.raises(EndpointError):
                await ask(endpoint, seed=seed)
    assert all(0.5 * 2**n <= wait <= 0.75 * 2**n for n, wait in enumerate(waits[1]))
    assert waits[1] != waits[2]


async def test_a_date_may_say_when():
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def answer(asked: Asked):
        past = {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}
        return said("4") if asked.number else (503, "", past)

    async with asking(answer, sleep=sleep) as (endpoint, _):
        await ask(endpoint)
    assert waits == [0.0]


async def test_an_answer_that_never_comes_is_given_up():
    leave = threading.Event()

    def answer(asked: Asked):
        leave.wait(20)
        return said("late")

    async with asking(answer, answer_seconds=0.05) as (endpoint, requests):
        with pytest.raises(EndpointError, match=r"gave no answer within 0\.05 s"):
            await ask(endpoint)
        leave.set()
    assert len(requests) == 1


# ── refusals ──


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "does not let us in with OPENAI_API_KEY (HTTP 401: because)"),
        (403, "does not let us in with OPENAI_API_KEY (HTTP 403: because)"),
        (404, "has no model 'small'"),
        (400, "answers HTTP 400: because"),
        (418, "answers HTTP 418: because"),
    ],
)
async def test_a_refusal_is_a_sentence_and_is_not_tried_again(status, words):
    async with asking(refuse(status)) as (endpoint, requests):
        with pytest.raises(EndpointError) as caught:
            await ask(endpoint)
    assert words in str(caught.value)
    assert len(requests) == 1


async def test_who_is_turned_away_does_not_knock_a_hundred_times():
    async with asking(refuse(401), requests=1) as (endpoint, requests):
        tried = await asyncio.gather(*(ask(endpoint) for _ in range(9)), return_exceptions=True)
    assert all(isinstance(error, EndpointError) and error.final for error in tried)
    assert len(requests) == 1


async def test_a_spent_quota_is_not_waited_for():
    body = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    async with asking(lambda asked: (429, body)) as (endpoint, requests):
        with pytest.raises(EndpointError, match="the quota of the key is used up"):
            await ask(endpoint)
    assert len(requests) == 1


async def test_the_key_is_never_repeated():
    async with asking(refuse(401, f"Incorrect API key: {KEY}")) as (endpoint, _):
        for speak in (ask(endpoint), endpoint.models()):
            with pytest.raises(EndpointError) as caught:
                await speak
            assert KEY not in str(caught.value)
            assert "Incorrect API key: …" in str(caught.value)


async def test_without_a_key_the_sentence_says_so():
    async with asking(refuse(401), key=None) as (endpoint, _):
        with pytest.raises(EndpointError, match="no key, as OPENAI_API_KEY is not set"):
            await ask(endpoint)


async def test_what_an_endpoint_says_cannot_harm_a_terminal():
    async with asking(refuse(400, "\x1b[2Jgone\nnext " + "x" * 999)) as (endpoint, _):
        with pytest.raises(EndpointError) as caught:
            await ask(endpoint)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


async def test_nobody_there():
    async with asking(lambda asked: said("4")) as (endpoint, _):
        gone = endpoint.url
    async with Endpoint(gone, "small", None, requests=1) as endpoint:
        with pytest.raises(EndpointError, match="nothing answers at http://127"):
            await endpoint.models()


async def test_the_models_it_offers():
    async with asking(lambda asked: said("4")) as (endpoint, _):
        assert await endpoint.models() == ["small", "big"]
    async with asking(refuse(404)) as (endpoint, _):
        assert await endpoint.models() == []


def test_a_password_in_an_address_is_not_shown():
    assert shown_url("https://me:secret@host:8/v1/?key=secret") == "https://host:8/v1"


# ── messages as tokens ──


def test_messages_come_back_from_their_numbers():
    renderer = EndpointRenderer()
    conversation: list[Message] = [{"role": "system", "content": "Add."}, *QUESTION]
    observation = renderer.prompt(conversation)
    assert renderer.messages(observation.tokens_T) == conversation
    assert renderer.prompt(conversation) == observation
    assert renderer.text(observation.tokens_T) == "system: Add.\nuser: What is 2 + 2?"
    assert renderer.prompt(QUESTION) != observation
    assert pickle.loads(pickle.dumps(renderer)).prompt(conversation) == observation


async def test_replies_have_the_length_they_had_and_turns_extend_each_other():
    async with asking(lambda asked: said("It is 4.", tokens=5)) as (endpoint, requests):
        renderer = EndpointRenderer()
        policy = EndpointPolicy(endpoint, renderer, 1.0)
        first = renderer.prompt(QUESTION)
        one, two = await policy(first, max_tokens=9, samples=2, seed=1)
        assert len(one.tokens_T) == len(one.logprobs_T) == 5
        assert one.tokens_T[1:] == [BLANK] * 4
        assert renderer.parse(one) == renderer.parse(two) == "It is 4."
        more: list[Message] = [{"role": "user", "content": "Sure?"}]
        then = renderer.prompt([*QUESTION, {"role": "assistant", "content": "It is 4."}, *more])
        assert then.tokens_T[: len(first.tokens_T) + 5] == first.tokens_T + one.tokens_T
        assert renderer.extend(first, one, more) == then
        await policy(then, max_tokens=9, samples=1, seed=2)
    assert [message["content"] for message in requests[-1].body["messages"]] == [
        "What is 2 + 2?",
        "It is 4.",
        "Sure?",
    ]
    assert len({request.body["seed"] for request in requests}) == 3
    assert all(0 <= request.body["seed"] < 2**31 for request in requests)


async def test_a_reply_that_did_not_come_fails_where_it_is_read():
    async with asking(refuse(400, "too long")) as (endpoint, _):
        renderer = EndpointRenderer()
        policy = EndpointPolicy(endpoint, renderer, 1.0)
        (action,) = await policy(renderer.prompt(QUESTION), max_tokens=9, samples=1, seed=1)
    with pytest.raises(RolloutFailed, match="HTTP 400: too long"):
        renderer.parse(action)
