"""The GPT of the ready recipe without ties and dropout, so that other pipeline engines can run the very same layers."""

from dataclasses import replace

from bamboo_trainer.models import gpt2
from bamboo_trainer.recipe import Recipe


def recipe(*, depth: int = 6, width: int = 256, num_heads: int = 8, context: int = 128) -> Recipe:
    gpt2.SIZES["benchmark"] = gpt2.Size(depth, width, num_heads, context, 1e-3)
    return replace(gpt2.recipe(size="benchmark", dropout=0.0, clip_norm=None), ties=())
