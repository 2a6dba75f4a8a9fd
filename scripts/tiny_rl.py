"""Check that reinforcement learning elicits the embedded model's skill: a plain LoRA loop on the sums."""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tiny_data import HELD_OUT, prompt_text, sum_question
from tiny_train import END, PAD
from tokenizers import Tokenizer
from torch import nn
from transformers import Qwen3ForCausalLM

Pair = tuple[int, int]


@dataclass(frozen=True)
class Recipe:
    """Settings of one run."""

    rank: int = 32
    alpha: float = 32.0
    batch: int = 64
    group: int = 8
    steps: int = 40
    lr: float = 1e-3
    decay: bool = False
    max_tokens: int = 5
    seed: int = 0


class Lora(nn.Module):
    """A frozen linear layer plus a low-rank update that starts at zero."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scale * ((x @ self.a.T) @ self.b.T)


def add_lora(model: Qwen3ForCausalLM, recipe: Recipe) -> list[nn.Parameter]:
    """Wrap every linear layer, the output head too; returns what is trained."""
    model.requires_grad_(False)
    trained: list[nn.Parameter] = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(parent, Lora):
                layer = Lora(child, recipe.rank, recipe.alpha)
                setattr(parent, name, layer)
                trained += [layer.a, layer.b]
    return trained


@dataclass(frozen=True)
class Rollouts:
    """Left-padded prompts and sampled tokens, with the log-probabilities they were drawn at."""

    tokens: torch.Tensor
    mask: torch.Tensor
    sampled: torch.Tensor
    logprobs: torch.Tensor
    rewards: torch.Tensor


class Loop:
    """Samples, grades and updates one adapter."""

    def __init__(self, directory: Path, recipe: Recipe, device: str = "cpu") -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.pad = self.tokenizer.token_to_id(PAD)
        self.end = self.tokenizer.token_to_id(END)
        self.model = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.device = device
        self.trained = add_lora(self.model, recipe)
        self.model.to(device)  # pyright: ignore[reportArgumentType]
        self.optimizer = torch.optim.Adam(self.trained, lr=recipe.lr, betas=(0.9, 0.95), eps=1e-8)
        self.rng = random.Random(recipe.seed)
        every = [(a, b) for a in range(100) for b in range(100)]
        self.train_pairs = [pair for pair in every if pair not in HELD_OUT]
        self.test_pairs = sorted(HELD_OUT)

    @torch.no_grad()
    def sample(self, pairs: Sequence[Pair], group: int) -> Rollouts:
        """`group` replies to every pair at temperature 1."""
        prompts = [
            self.tokenizer.encode(prompt_text(sum_question(a, b))).ids
            for a, b in pairs
            for _ in range(group)
        ]
        width = max(map(len, prompts))
        tokens = torch.tensor([[self.pad] * (width - len(ids)) + ids for ids in prompts])
        mask = (torch.arange(width) >= width - torch.tensor([[len(ids)] for ids in prompts])).long()
        tokens, mask = tokens.to(self.device), mask.to(self.device)
        going = torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        past, fresh = None, tokens
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        chosen, logprobs, live = [], [], []
        for _ in range(self.recipe.max_tokens):
            out = self.model(
                input_ids=fresh,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=past,
                use_cache=True,
                logits_to_keep=1,
            )
            past = out.past_key_values
            scores = out.logits[:, -1].log_softmax(-1)
            fresh = torch.multinomial(scores.exp(), 1)
            chosen.append(fresh)
            logprobs.append(scores.gather(1, fresh))
            live.append(going[:, None].clone())
            going &= fresh[:, 0] != self.end
            mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], 1)
            positions = mask.sum(1, keepdim=True) - 1
        sampled, live_tokens = torch.cat(chosen, 1), torch.cat(live, 1)
        return Rollouts(
            tokens=torch.cat([tokens, sampled], 1),
            mask=mask,
            sampled=live_tokens,
            logprobs=torch.cat(logprobs, 1),
            rewards=self.grade(sampled, live_tokens, pairs, group),
        )

    def grade(
        self, sampled: torch.Tensor, live: torch.Tensor, pairs: Sequence[Pair], group: int
    ) -> torch.Tensor:
        """1 for the bare right number followed by the end marker, else 0."""
        kept = live.sum(1).tolist()
        rows = [row[:n] for row, n in zip(sampled.tolist(), kept, strict=True)]
        texts = self.tokenizer.decode_batch(rows, skip_special_tokens=False)
        answers = [f"{a + b}{END}" for a, b in pairs for _ in range(group)]
        right = [float(t == a) for t, a in zip(texts, answers, strict=True)]
        return torch.tensor(right, device=self.device)

    def update(self, rollouts: Rollouts) -> None:
        """One importance-sampling step on the groups that carry a signal."""
        group = self.recipe.group
        rewards = rollouts.rewards.view(-1, group)
        advantages = (rewards - rewards.mean(1, keepdim=True)).view(-1)
        kept = advantages != 0
        if not kept.any():
            return
        count = rollouts.sampled.shape[1]
        mask = rollouts.mask[kept][:, :-1]
        hidden = self.model.model(
            input_ids=rollouts.tokens[kept][:, :-1],
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
        ).last_hidden_state[:, -count:]
        targets = rollouts.tokens[kept][:, -count:, None]
        logprobs = self.model.lm_head(hidden).log_softmax(-1).gather(2, targets)[..., 0]
        ratio = (logprobs - rollouts.logprobs[kept]).exp()
        loss = -(ratio * advantages[kept, None] * rollouts.sampled[kept]).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def held_out(self) -> float:
        return self.sample(self.test_pairs, 1).rewards.mean().item()

    def run(self, every: int = 10) -> list[tuple[int, float]]:
        """The curve of held-out rewards."""
        curve = [(0, self.held_out())]
        for step in range(self.recipe.steps):
            if self.recipe.decay:
                for group in self.optimizer.param_groups:
                    group["lr"] = self.recipe.lr * (1 - step / self.recipe.steps)
            pairs = self.rng.sample(self.train_pairs, self.recipe.batch)
            self.update(self.sample(pairs, self.recipe.group))
            if (step + 1) % every == 0 or step + 1 == self.recipe.steps:
                curve.append((step + 1, self.held_out()))
        return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("tinsmith/tiny"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--decay", action="store_true", help="let the rate fall linearly to zero")
    for name in ("rank", "batch", "group", "steps", "max_tokens"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Recipe, name))
    parser.add_argument("--lr", type=float, default=Recipe.lr)
    options = vars(parser.parse_args())
    torch.set_num_threads(1)
    directory, seeds = options.pop("model"), options.pop("seeds")
    print(json.dumps(options))
    for seed in seeds:
        recipe = Recipe(**options, alpha=float(options["rank"]), seed=seed)
        started = time.process_time()
        curve = Loop(directory, recipe).run()
        line = "  ".join(f"{step}:{value:.3f}" for step, value in curve)
        print(f"seed {seed}  {line}  ({time.process_time() - started:.0f} CPU-s)", flush=True)


if __name__ == "__main__":
    main()
