"""The global norm of the gradients, and what clipping makes of it."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

NORM_BLOCK = 1 << 16
"""Elements that are squared in float64 at once: four times as fast as the whole, since it stays in the cache."""
NORM_BLOCK_CUDA = 1 << 24
"""There each block is three launches, and its copy in float64 is 128 MB."""


def square_norm(chunks: Sequence[Tensor]) -> float:
    """Sum of squares, in float64."""
    total: float | Tensor = 0.0
    for chunk in chunks:
        for block in torch.split(chunk, NORM_BLOCK_CUDA if chunk.is_cuda else NORM_BLOCK):
            wide = block.double()
            square = torch.dot(wide, wide)
            total += square if chunk.is_cuda else float(square)  # a GPU is waited for once, not for each block
    return float(total)


def clip_scale(square_norms: Sequence[float], clip_norm: float | None) -> float:
    """What gradients are multiplied by: ``clip_norm`` over the global norm where that is larger, as torch's
    ``clip_grad_norm_`` has it. A norm that is not finite clips nothing; the loss will say so.
    """
    if clip_norm is None:
        return 1.0
    norm = math.sqrt(sum(square_norms))
    return clip_norm / (norm + 1e-6) if norm > clip_norm and math.isfinite(norm) else 1.0
