"""OpenAI's own client against the service: the embedded model chats, streams, calls tools and is trained."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import tinker
from transformers import AutoTokenizer

import tinsmith
from tests.contract.conftest import BackendFactory, Running
from tests.contract.data import datum
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

TINY = Path(tinsmith.__file__).parent / "tiny"
SUM = [{"role": "user", "content": "What is 12 + 30?"}]
STORY = [
    {"role": "system", "content": "Solve the problem. Use the python tool to compute."},
    {
        "role": "user",
        "content": "Tom has 14 apples and buys 23 more. How many apples does he have?",
    },
]
PYTHON = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run Python code and return what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The Python code to run."}},
            "required": ["code"],
        },
    },
}
IDS = {"return_token_ids": True}


@pytest.fixture(scope="module")
def backend_factory() -> BackendFactory:
    return lambda: TorchBackend(device="cpu", dtype="float32", threads=1)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(str(TINY))


@pytest.fixture
def api(server: Running) -> Any:
    """Typed as Any: requests here go beyond what the package's types allow."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="tml-x", max_retries=0) as client:
        yield client


def chat(api: Any, **settings: Any) -> Any:
    asked = {"model": EMBEDDED_MODEL, "messages": SUM, "max_tokens": 24, **settings}
    return api.chat.completions.create(**asked)


def complete(api: Any, **settings: Any) -> Any:
    asked = {"model": EMBEDDED_MODEL, "prompt": "What is 4", "max_tokens": 8, **settings}
    return api.completions.create(**asked)


def dumped(choice: Any) -> dict[str, Any]:
    """A choice without what is new in every answer."""
    body = choice.model_dump(exclude_none=True)
    for call in body.get("message", {}).get("tool_calls", ()):
        del call["id"]
    return body


def joined(chunks: Any) -> tuple[list[dict[str, Any]], Any]:
    """The choices that portions amount to, and the usage in the last of them."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in chunks:
        assert usage is None, "usage comes last"
        usage = chunk.usage
        for part in chunk.choices:
            body = part.model_dump(exclude_none=True)
            delta = body.get("delta", {})
            whole = choices.setdefault(
                part.index,
                {"index": part.index, "content": "", "calls": [], "scored": [], "ids": []},
            )
            assert "finish_reason" not in whole, "nothing comes after the end"
            assert ("role" in delta) == (whole["content"] == "" and "begun" not in whole)
            whole["begun"] = True
            whole["content"] += delta.get("content", "")
            whole["calls"] += delta.get("tool_calls", [])
            whole["scored"] += body.get("logprobs", {}).get("content", [])
            whole["ids"] += body.get("token_ids", [])
            if "finish_reason" in body:
                whole["finish_reason"] = body["finish_reason"]
    return [choices[index] for index in sorted(choices)], usage


# ── chat ─────────────────────────────────────────────────────────────────────────────────────


def test_a_question_is_answered(api: Any, tokenizer: Any) -> None:
    answer = chat(api, temperature=0, extra_body=IDS)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("42", "stop")
    assert choice.message.tool_calls is None
    prompt = tokenizer.apply_chat_template(SUM, add_generation_prompt=True, return_dict=False)
    assert answer.prompt_token_ids == prompt
    assert tokenizer.decode(choice.token_ids) == "42<|im_end|>"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), 3)
    assert answer.usage.total_tokens == len(prompt) + 3
    again = chat(api, temperature=0)
    assert again.usage.prompt_tokens_details.cached_tokens == 16


def test_an_answer_that_is_cut_says_so(api: Any) -> None:
    (choice,) = chat(api, temperature=0, max_tokens=None, max_completion_tokens=1).choices
    assert (choice.message.content, choice.finish_reason) == ("4", "length")


def test_parts_of_text_are_a_text_and_developers_are_the_system(api: Any, tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "12 + 30?"}]
    asked = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = chat(api, messages=asked, extra_body=IDS)
    text = tokenizer.decode(answer.prompt_token_ids)
    assert text.startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is\n12 + 30?<|im_end|>"
    )


def test_a_begun_answer_is_continued(api: Any) -> None:
    begun = [*SUM, {"role": "assistant", "content": "4"}]
    (choice,) = chat(
        api, messages=begun, temperature=0, extra_body={"continue_final_message": True}
    ).choices
    assert choice.message.content == "2"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"logprobs": True, "top_logprobs": 3, "extra_body": IDS},
        {"temperature": 3.0, "extra_body": IDS},  # bytes of all sorts
        {"temperature": 3.0, "stop": ["1", "e", "\n"], "logprobs": True},
        {"messages": STORY, "tools": [PYTHON], "max_tokens": 64},
    ],
    ids=["plain", "scores", "wild", "stops", "tools"],
)
def test_portions_amount_to_the_whole(api: Any, settings: dict[str, Any]) -> None:
    settings = {"n": 6, "seed": 11, **settings}
    whole = chat(api, **settings)
    parts = chat(api, stream=True, stream_options={"include_usage": True}, **settings)
    choices, usage = joined(parts)
    assert len(choices) == 6
    for choice, said in zip(whole.choices, choices, strict=True):
        body = dumped(choice)
        calls = [{k: v for k, v in c.items() if k not in ("id", "index")} for c in said["calls"]]
        assert [call["index"] for call in said["calls"]] == list(range(len(calls)))
        assert said["content"] == body["message"].get("content", "")
        assert calls == body["message"].get("tool_calls", [])
        assert said["scored"] == body.get("logprobs", {}).get("content", [])
        assert said["ids"] == body.get("token_ids", [])
        assert said["finish_reason"] == body["finish_reason"]
        for stop in settings.get("stop", ()):
            assert stop not in said["content"]
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_portions_come_before_the_end(api: Any) -> None:
    parts = list(chat(api, stream=True, temperature=0))
    texts = [part.choices[0].delta.content for part in parts]
    assert [text for text in texts if text] == ["4", "2"]


def test_scores_are_those_of_the_sdk(api: Any, client: tinker.ServiceClient) -> None:
    answer = chat(api, seed=5, n=2, temperature=0.7, logprobs=True, top_logprobs=1, extra_body=IDS)
    sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
    params = tinker.SamplingParams(max_tokens=24, seed=5, temperature=0.7)
    prompt = tinker.ModelInput.from_ints(answer.prompt_token_ids)
    own = sampler.sample(prompt, 2, params).result().sequences
    for choice, sequence in zip(answer.choices, own, strict=True):
        scored = choice.logprobs.content
        assert choice.token_ids == list(sequence.tokens)
        assert [one.logprob for one in scored] == list(sequence.logprobs)
        assert all(one.top_logprobs[0].logprob >= one.logprob for one in scored)
        said = b"".join(bytes(one.bytes) for one in scored).decode()
        assert said.removesuffix("<|im_end|>") == choice.message.content


# ── tools ────────────────────────────────────────────────────────────────────────────────────


def test_a_tool_is_called_and_its_answer_read(api: Any, tokenizer: Any) -> None:
    answers = chat(api, messages=STORY, tools=[PYTHON], n=32, seed=2, max_tokens=64, extra_body=IDS)
    want = tokenizer.apply_chat_template(
        STORY, tools=[PYTHON], add_generation_prompt=True, return_dict=False
    )
    assert answers.prompt_token_ids == want
    called = [choice for choice in answers.choices if choice.message.tool_calls]
    assert 0 < len(called) < 32
    for choice in answers.choices:
        text = tokenizer.decode(choice.token_ids).removesuffix("<|im_end|>")
        if choice not in called:  # a broken call is text, all of it
            assert choice.message.content == text
    first = called[0]
    (call,) = first.message.tool_calls
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    assert (call.type, call.function.name) == ("function", "python")
    assert json.loads(call.function.arguments)["code"].startswith("print(")
    # The conversation goes on with the client's own copy of what was said.
    said = first.message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": call.id, "content": "37"}
    last = chat(api, messages=[*STORY, said, result], tools=[PYTHON], temperature=0, extra_body=IDS)
    assert last.choices[0].message.content == "37"
    before = tokenizer.decode([*answers.prompt_token_ids, *first.token_ids])
    assert tokenizer.decode(last.prompt_token_ids).startswith(before)


def test_tools_that_may_not_be_called_are_not_shown(api: Any) -> None:
    with_none = chat(api, tools=[PYTHON], tool_choice="none", extra_body=IDS)
    assert with_none.prompt_token_ids == chat(api, extra_body=IDS).prompt_token_ids


# ── completions ──────────────────────────────────────────────────────────────────────────────


def test_prompts_of_every_kind(api: Any, tokenizer: Any) -> None:
    texts = ["What is 4", "1 + 1 ="]
    ids = [tokenizer.encode(text) for text in texts]
    one = [complete(api, prompt=text, seed=3, n=2).choices for text in texts]
    for prompts in (texts, ids):
        both = complete(api, prompt=prompts, seed=3, n=2)
        assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
        assert [c.text for c in both.choices] == [c.text for part in one for c in part]
        assert both.usage.prompt_tokens == sum(map(len, ids))
    assert complete(api, prompt=ids[0], seed=3).choices[0].text == one[0][0].text


def test_a_completion_in_portions(api: Any) -> None:
    settings = {"prompt": ["What is 4", "Hé"], "seed": 4, "n": 2, "temperature": 2.0, "logprobs": 2}
    for echo in (False, True):
        whole = complete(api, echo=echo, **settings)
        texts, offsets = [""] * 4, [[] for _ in range(4)]
        for part in complete(api, echo=echo, stream=True, **settings):
            (choice,) = part.choices
            texts[choice.index] += choice.text
            offsets[choice.index] += choice.logprobs.text_offset
        assert texts == [choice.text for choice in whole.choices]
        assert offsets == [choice.logprobs.text_offset for choice in whole.choices]


def test_the_prompt_is_scored_as_the_sdk_scores_it(
    api: Any, client: tinker.ServiceClient, tokenizer: Any
) -> None:
    text = "What is 12 + 30?"
    ids = tokenizer.encode(text)
    (choice,) = complete(api, prompt=text, max_tokens=0, echo=True, logprobs=2).choices
    assert choice.text == text
    scores = choice.logprobs
    assert scores.tokens == [tokenizer.decode([token]) for token in ids]
    for offset, token in zip(scores.text_offset, scores.tokens, strict=True):
        assert text[offset:].startswith(token)
    sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
    own = sampler.compute_logprobs(tinker.ModelInput.from_ints(ids)).result()
    assert scores.token_logprobs == own
    assert scores.top_logprobs[0] is None
    for token, logprob, top in list(
        zip(scores.tokens, scores.token_logprobs, scores.top_logprobs, strict=True)
    )[1:]:
        assert top[token] == pytest.approx(logprob, rel=1e-5)
        assert 2 <= len(top) <= 3


def test_stop_tokens_end_an_answer_and_are_not_part_of_it(api: Any, tokenizer: Any) -> None:
    four, two = tokenizer.encode("4") + tokenizer.encode("2")
    (choice,) = chat(api, temperature=0, extra_body={"stop_token_ids": [two], **IDS}).choices
    assert (choice.message.content, choice.finish_reason) == ("4", "stop")
    assert choice.token_ids == [four, two]
    (choice,) = chat(api, temperature=0, max_tokens=9, extra_body={"ignore_eos": True}).choices
    assert (choice.message.content[:2], choice.finish_reason) == ("42", "length")


# ── weights ──────────────────────────────────────────────────────────────────────────────────


def test_trained_weights_answer_by_their_path(
    api: Any, client: tinker.ServiceClient, tokenizer: Any
) -> None:
    trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=8, seed=3)
    prompt = tokenizer.apply_chat_template(SUM, add_generation_prompt=True, return_dict=False)
    lesson = datum([*prompt, *tokenizer.encode("Who knows?<|im_end|>")])
    for _ in range(30):
        trainer.forward_backward([lesson], "cross_entropy")
        trainer.optim_step(tinker.AdamParams(learning_rate=0.01)).result()
    path = trainer.save_weights_for_sampler(name="taught").result().path
    state = trainer.save_state(name="taught").result().path
    for weights in (path, state):
        assert chat(api, model=weights, temperature=0).choices[0].message.content == "Who knows?"
    assert chat(api, temperature=0).choices[0].message.content == "42"
    assert api.models.retrieve(path).root == EMBEDDED_MODEL
    with pytest.raises(openai.NotFoundError, match="there is no checkpoint"):
        chat(api, model=path.replace("taught", "untaught"))


def test_models_are_listed(api: Any, server: Running) -> None:
    assert EMBEDDED_MODEL in [model.id for model in api.models.list()]
    card = api.models.retrieve(EMBEDDED_MODEL)
    assert (card.object, card.max_model_len) == ("model", 2048)
    hosted = openai.OpenAI(base_url=f"{server.url}/oai/api/v1", api_key="tml-x", max_retries=0)
    assert chat(hosted, temperature=0).choices[0].message.content == "42"
    hosted.close()


# ── refusals and going away ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "param", "says"),
    [
        ({"logit_bias": {"1": 2}}, "logit_bias", "leave it out"),
        ({"presence_penalty": 0.5}, "presence_penalty", "leave it out"),
        ({"frequency_penalty": -1}, "frequency_penalty", "leave it out"),
        ({"response_format": {"type": "json_object"}}, "response_format", "leave it out"),
        ({"functions": []}, "functions", "use tools"),
        ({"extra_body": {"temprature": 1}}, "temprature", "spelling"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"messages": []}, "messages", "at least 1 item"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages",
            "'text'",
        ),
        ({"max_tokens": 3000}, "messages", r"context of tinsmith/tiny \(2048\)"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"tools": [PYTHON], "tool_choice": "required"}, "tool_choice", "none or auto"),
        ({"tools": [{"type": "retrieval"}]}, "tools", "'function'"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"extra_body": {"chat_template_kwargs": {"chat_template": "x"}}}, None, "may not hold"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_given_is_refused(
    api: Any, settings: dict[str, Any], param: str | None, says: str, stream: bool
) -> None:
    if stream and "stream_options" in settings:
        return
    with pytest.raises(openai.BadRequestError, match=says) as caught:
        chat(api, stream=stream, **settings)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_what_says_nothing_about_the_answer_is_ignored(api: Any) -> None:
    answer = chat(
        api, temperature=0, user="me", presence_penalty=0, logit_bias={}, metadata={"a": "b"},
        response_format={"type": "text"}, store=False, extra_body={"min_p": 0.0},
    )  # fmt: skip
    assert answer.choices[0].message.content == "42"


@pytest.mark.parametrize("best_of", [2, 5])
def test_the_best_of_several_is_refused(api: Any, best_of: int) -> None:
    with pytest.raises(openai.BadRequestError, match="best_of is not supported"):
        complete(api, best_of=best_of)
    complete(api, best_of=1)


def test_an_unknown_model_is_a_sentence(api: Any) -> None:
    for name in ("nobody/nothing", "tinker://x:train:0/sampler_weights/y", "tinker://", "/"):
        with pytest.raises(openai.NotFoundError) as caught:
            chat(api, model=name)
        assert caught.value.param == "model"
        assert "tinker://<model id>/sampler_weights/<name>" in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null", b'{"model": 3}', b"\xff"])
def test_a_body_that_is_no_request_is_a_sentence(server: Running, body: bytes) -> None:
    for path in ("/v1/completions", "/oai/api/v1/chat/completions"):
        answer = httpx.post(server.url + path, content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_work(
    server: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    started, cancelled = threading.Event(), threading.Event()
    add, cancel = server.backend.add, server.backend.cancel

    def note_add(job_id: str, job: Any) -> None:
        add(job_id, job)
        started.set()

    def note_cancel(job_id: str) -> None:
        cancel(job_id)
        cancelled.set()

    monkeypatch.setattr(server.backend, "add", note_add)
    monkeypatch.setattr(server.backend, "cancel", note_cancel)
    asked = {
        "model": EMBEDDED_MODEL, "messages": SUM, "stream": stream, "ignore_eos": True, "n": 64,
        "max_tokens": 2000,
    }  # fmt: skip
    connection = HTTPConnection(server.url.removeprefix("http://"))
    connection.request("POST", "/v1/chat/completions", json.dumps(asked))
    assert started.wait(30)
    if stream:
        assert connection.getresponse().readline().startswith(b"data: ")
    connection.close()
    assert cancelled.wait(30)
    assert not server.backend.sampling


def test_the_stream_is_as_the_api_says(server: Running) -> None:
    asked = {"model": EMBEDDED_MODEL, "messages": SUM, "stream": True, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-2]:
        body = json.loads(event.removeprefix("data: "))
        assert body["object"] == "chat.completion.chunk"
