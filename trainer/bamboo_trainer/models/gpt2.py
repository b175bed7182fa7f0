"""GPT-2 (Radford et al., 2019) on bytes: embedding, blocks, head, the embedding tied to the head.

Byte-level tokens need no vocabulary file; the default text is the help of Python itself, which is always there.
"""

import copy
import glob
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from bamboo_trainer.models import gpt2_transformers
from bamboo_trainer.recipe import LayerFactory, Recipe, RecipeError, TiedParameter

VOCABULARY = 256


class Size(NamedTuple):
    depth: int
    width: int
    num_heads: int
    context: int
    learning_rate: float


SIZES = {
    "tiny": Size(6, 128, 4, 64, 2e-3),
    "small": Size(12, 768, 12, 1024, 6e-4),
    "medium": Size(24, 1024, 16, 1024, 3e-4),
    "large": Size(36, 1280, 20, 1024, 2.5e-4),
    "xl": Size(48, 1600, 25, 1024, 2e-4),
}
"""``tiny`` has 1.2 million parameters; the others are those of the paper, with learning rates of GPT-3's table 2.1."""


def recipe(
    *,
    size: str = "tiny",
    context: int | None = None,
    dropout: float = 0.1,
    text: str | Sequence[str] | None = None,
    learning_rate: float | None = None,
    warmup_steps: int = 10,
    decay_steps: int | None = None,
    weight_decay: float = 0.1,
    clip_norm: float | None = 1.0,
    held_out: float = 0.05,
) -> Recipe:
    """``context``: tokens a sample. ``text``: absolute paths or glob patterns; default: the help texts of Python.
    ``decay_steps``: the learning rate falls to a tenth over so many steps, along a cosine; default: it stays.
    ``held_out``: the part of the text, at its end, that is not trained on.
    """
    if size not in SIZES:
        raise RecipeError(f"recipe gpt2: no size {size!r}; it has: {', '.join(SIZES)}")
    chosen = SIZES[size]
    if not 0 <= held_out < 1:
        raise RecipeError(f"recipe gpt2: held_out is {held_out}; it is a part of the text, such as 0.05")
    context = context or chosen.context
    training, others = split(Text(read_text(text), context), held_out)
    block = partial(Block, chosen.width, chosen.num_heads, dropout, chosen.depth)
    layers = (
        LayerFactory("embedding", partial(Embedding, chosen.width, context, dropout)),
        *(LayerFactory(f"block.{i}", block) for i in range(chosen.depth)),
        LayerFactory("head", partial(Head, chosen.width)),
    )
    return Recipe(
        layers=layers,
        loss=next_byte_loss,
        dataset=training,
        optimizer=partial(torch.optim.AdamW, betas=(0.9, 0.95), weight_decay=weight_decay, foreach=True),
        learning_rate=warm_up_and_decay(learning_rate or chosen.learning_rate, warmup_steps, decay_steps),
        ties=((TiedParameter(0, "tokens.weight"), TiedParameter(len(layers) - 1, "tokens.weight")),),
        clip_norm=clip_norm,
        tokens_per_sample=context,
        held_out=others,
        open_data=lambda pattern: Text(read_text(pattern), context),
        transformers=gpt2_transformers.form(
            depth=chosen.depth,
            width=chosen.width,
            num_heads=chosen.num_heads,
            context=context,
            dropout=dropout,
            vocabulary=VOCABULARY,
        ),
    )


class Embedding(nn.Module):
    def __init__(self, width: int, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, context) of int64 to (batch, context, width)"""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.dropout(x)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and feed-forward, each after its LayerNorm and around a residual connection."""

    def __init__(self, width: int, num_heads: int, dropout: float, depth: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        for linear in (self.qkv, self.projection, self.up, self.down):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        for linear in (self.projection, self.down):  # what goes into the residual stream, GPT-2 section 2.3
            nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * depth))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) to the same"""
        x = x + self._drop(self.projection(self._attend(self.qkv(self.norm_1(x)))))
        hidden = functional.gelu(self.up(self.norm_2(x)), approximate="tanh")
        return x + self._drop(self.down(hidden))

    def _attend(self, qkv: Tensor) -> Tensor:
        batch, context, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        heads = qkv.view(batch, context, 3, self.num_heads, width // self.num_heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            heads[0], heads[1], heads[2], dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        return mixed.transpose(1, 2).reshape(batch, context, width)

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)


class Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.tokens = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) to logits (batch, context, VOCABULARY)"""
        return self.tokens(self.norm(x))  # type: ignore[no-any-return]


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Text:
    """Windows of ``context`` bytes, one after the other; the targets are the bytes that follow."""

    def __init__(self, text: bytes, context: int) -> None:
        if len(text) <= context:
            raise RecipeError(
                f"recipe gpt2: the text has {len(text)} bytes; it needs more than the context of {context}"
            )
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.context = context

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def part(self, first: int, end: int) -> "Text":
        """Samples ``[first, end)``, in the same memory."""
        found = copy.copy(self)
        found.tokens = self.tokens[first * self.context : end * self.context + 1]
        return found

    def batch(self, sample_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(batch, context) of int64, twice"""
        length = self.context
        windows = torch.stack([self.tokens[i * length : (i + 1) * length + 1] for i in sample_ids]).long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def split(text: Text, held_out: float) -> tuple[Text, Text | None]:
    """What is trained on, and what is not: no byte that is to be foretold in the one is so in the other."""
    first = len(text) - min(int(len(text) * held_out), len(text) - 1)
    return text.part(0, first), text.part(first, len(text)) if first < len(text) else None


def read_text(patterns: str | Sequence[str] | None) -> bytes:
    """All matching files in order of their names. Raises RecipeError."""
    if patterns is None:
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics)).encode()
    texts = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not Path(pattern).is_absolute():
            raise RecipeError(
                f"recipe gpt2: text {pattern!r} must be an absolute path, since nodes work in folders of their own; "
                f"did you mean {Path(pattern).absolute()}?"
            )
        paths = [Path(name) for name in sorted(glob.glob(pattern, recursive=True)) if Path(name).is_file()]
        if not paths:
            raise RecipeError(f"recipe gpt2: no file matches text {pattern!r} on this machine")
        texts += [path.read_bytes() for path in paths]
    return b"\n".join(texts)


def warm_up_and_decay(peak: float, warmup_steps: int, decay_steps: int | None) -> Callable[[int], float]:
    def learning_rate(step: int) -> float:
        if step < warmup_steps:
            return peak * (step + 1) / warmup_steps
        if decay_steps is None:
            return peak
        progress = min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
        return peak * (0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)

    return learning_rate
