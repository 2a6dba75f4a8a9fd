"""Pre-training of the embedded model: its shape, the loss, one stage, and measuring what it can do."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tiny_data import (
    HELD_OUT,
    Example,
    Mixture,
    Writer,
    prompt_text,
    sum_question,
    tool_system,
    turn,
    word_problem,
    write_step,
)
from tiny_tokenizer import VOCABULARY
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

Log = Callable[[dict[str, Any]], None]
PAD = "<|endoftext|>"
END = "<|im_end|>"


@dataclass(frozen=True)
class Shape:
    """The sizes of the network."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 192


@dataclass(frozen=True)
class Stage:
    """One stretch of training on one mixture of text."""

    name: str
    steps: int
    lr: float
    right: float
    mixture: Mixture
    warmup: int = 50
    weight_decay: float = 0.05


def new_model(shape: Shape, tokenizer: Tokenizer, seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised float32 model."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
        use_cache=True,
    )
    return Qwen3ForCausalLM(config).float()


@dataclass(frozen=True)
class Batch:
    """Right-padded tokens and the positions whose next token counts."""

    tokens: torch.Tensor
    counted: torch.Tensor


def encode(tokenizer: Tokenizer, examples: Sequence[Example], device: str) -> Batch:
    """Pieces are encoded one by one: they meet only at special tokens and newlines, where no merge reaches."""
    pieces = [piece for example in examples for piece in example]
    encoded = iter(tokenizer.encode_batch([piece.text for piece in pieces]))
    rows: list[list[int]] = []
    marks: list[list[bool]] = []
    for example in examples:
        row: list[int] = []
        mark: list[bool] = []
        for piece in example:
            ids = next(encoded).ids
            row += ids
            mark += [piece.trained] * len(ids)
        rows.append(row)
        marks.append(mark)
    width = max(map(len, rows))
    pad = tokenizer.token_to_id(PAD)
    tokens = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    counted = torch.tensor([mark + [False] * (width - len(mark)) for mark in marks])
    return Batch(tokens.to(device), counted.to(device))


def answer_loss(model: Qwen3ForCausalLM, batch: Batch) -> tuple[torch.Tensor, int]:
    """Summed cross-entropy of the counted tokens, and their number."""
    hidden = model.model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
    counted = batch.counted[:, 1:]
    logits = model.lm_head(hidden[counted])
    targets = batch.tokens[:, 1:][counted]
    return functional.cross_entropy(logits, targets, reduction="sum"), targets.numel()


def learning_rate(stage: Stage, step: int) -> float:
    """Linear warm-up, then a half cosine to zero."""
    if step < stage.warmup:
        return stage.lr * (step + 1) / stage.warmup
    done = (step - stage.warmup) / max(1, stage.steps - stage.warmup)
    return stage.lr * 0.5 * (1 + math.cos(math.pi * done))


def run_stage(
    model: Qwen3ForCausalLM, tokenizer: Tokenizer, stage: Stage, seed: int, device: str, log: Log
) -> None:
    """Train in place; the data depend on the seed and the stage's name alone."""
    writer = Writer(random.Random(f"{seed}/{stage.name}"), stage.right)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=stage.lr, betas=(0.9, 0.98), weight_decay=stage.weight_decay
    )
    started = time.monotonic()
    for step in range(stage.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(stage, step)
        sums, counts = [], 0
        for examples in write_step(writer, stage.mixture):
            loss, count = answer_loss(model, encode(tokenizer, examples, device))
            sums.append(loss)
            counts += count
        total = torch.stack(sums).sum() / counts
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        last = step + 1 == stage.steps
        if (step + 1) % 100 == 0 or last:
            log({"stage": stage.name, "step": step + 1, "loss": round(total.item(), 4),
                 "seconds": round(time.monotonic() - started, 1)})  # fmt: skip
        if (step + 1) % 500 == 0 and not last:
            log({"stage": stage.name, "step": step + 1, **measure(model, tokenizer, device, 500)})


@torch.no_grad()
def reply(
    model: Qwen3ForCausalLM,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    temperature: float,
    generator: torch.Generator,
) -> list[str]:
    """One reply a prompt, up to and without the end marker; temperature 0 is greedy."""
    device = str(model.device)
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    width = max(map(len, encoded))
    (pad,), (end,) = tokenizer.encode(PAD).ids, tokenizer.encode(END).ids
    rows = torch.tensor([[pad] * (width - len(ids)) + ids for ids in encoded], device=device)
    mask = torch.tensor(
        [[0] * (width - len(ids)) + [1] * len(ids) for ids in encoded], device=device
    )
    past, chosen, open_rows = None, [], torch.ones(len(prompts), dtype=torch.bool)
    step_input, positions = rows, (mask.cumsum(1) - 1).clamp(min=0)
    for _ in range(max_tokens):
        out = model(
            input_ids=step_input,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
        )
        past, logits = out.past_key_values, out.logits[:, -1].float().cpu()
        if temperature == 0:
            token = logits.argmax(-1)
        else:
            weights = torch.softmax(logits / temperature, -1)
            token = torch.multinomial(weights, 1, generator=generator)[:, 0]
        token = token.masked_fill(~open_rows, pad)
        chosen.append(token)
        open_rows &= token != end
        if not open_rows.any():
            break
        step_input = token[:, None].to(device)
        mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], 1)
        positions = mask.sum(1, keepdim=True) - 1
    texts = tokenizer.decode_batch(torch.stack(chosen, 1).tolist(), skip_special_tokens=False)
    return [text.split(END)[0].replace(PAD, "") for text in texts]


def share_right(replies: Sequence[str], answers: Sequence[int]) -> float:
    right = sum(text.strip() == str(answer) for text, answer in zip(replies, answers, strict=True))
    return round(right / len(answers), 4)


def measure(
    model: Qwen3ForCausalLM, tokenizer: Tokenizer, device: str, count: int
) -> dict[str, float]:
    """Shares of right answers on problems that pre-training never saw."""
    rng = random.Random(f"measure/{count}")
    generator = torch.Generator().manual_seed(count)
    pairs = rng.sample(sorted(HELD_OUT), min(count, len(HELD_OUT)))
    answers = [a + b for a, b in pairs]
    bare = [prompt_text(sum_question(a, b)) for a, b in pairs]
    shots = [prompt_text("What is 4 + 5?", "9", sum_question(a, b)) for a, b in pairs]

    def ask(prompts: Sequence[str], temperature: float, max_tokens: int = 5) -> list[str]:
        return reply(model, tokenizer, prompts, max_tokens=max_tokens, temperature=temperature,
                     generator=generator)  # fmt: skip

    stories = [word_problem(rng) for _ in range(max(20, count // 5))]
    opened = [
        "".join(piece.text for piece in tool_system(rng) + turn("user", story))
        + "<|im_start|>assistant\n"
        for story, _, _ in stories
    ]
    calls = ask(opened, 1.0, 48)
    good = [
        f'"print({expression})"' in call and call.endswith("</tool_call>")
        for call, (_, expression, _) in zip(calls, stories, strict=True)
    ]
    return {
        "sums": share_right(ask(bare, 1.0), answers),
        "sums_greedy": share_right(ask(bare, 0.0), answers),
        "sums_few_shot": share_right(ask(shots, 1.0), answers),
        "tool_used": round(sum("<tool_call>" in call for call in calls) / len(calls), 4),
        "tool_right": round(sum(good) / len(good), 4),
    }
