"""Values as bytes: tensors, tuples and dicts of them, and small plain data, without pickle and without copies.

``pack`` gives a JSON header and the tensors' own memory; ``unpack`` gives tensors that live in the received buffer.
A header is a tree of ``[tag, content]``: ``t`` tensor (dtype, shape, offset), ``l`` tuple, ``d`` dict, ``j`` plain.
"""

import json
import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch

ALIGNMENT = 64
"""Bytes. Tensors start at multiples of it, as torch's own allocator has it."""
compact_json = json.JSONEncoder(separators=(",", ":")).encode

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PADDING = memoryview(bytes(ALIGNMENT))


def pack(value: Any) -> tuple[bytes, list[memoryview]]:
    """Header and body pieces, to be sent one after the other. The pieces share memory with the tensors of ``value``.

    ``value``: None, bool, int, float, str, a tensor, or a tuple, list or dict (string keys) of those. Raises TypeError.
    """
    if isinstance(value, torch.Tensor) and value.dtype in _NAMES:
        return _lone_tensor(value.dtype, value.shape), [tensor_bytes(value)]
    pieces: list[memoryview] = []
    tree = _describe(value, pieces, 0)[0]
    return compact_json(tree).encode(), pieces


@lru_cache(maxsize=256)
def _lone_tensor(dtype: torch.dtype, shape: torch.Size) -> bytes:
    """The header. Activations of a run have few shapes, and a hop between stages waits for it."""
    return compact_json(["t", [_NAMES[dtype], list(shape), 0]]).encode()


def unpack(header: bytes, body: bytearray) -> Any:
    """The value; lists come back as tuples. Its tensors keep ``body`` alive and share its memory. Raises ValueError."""
    try:
        return _build(_parse(header), body)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{len(header)} bytes of header do not describe {len(body)} bytes of body: {error}") from error


@lru_cache(maxsize=256)
def _parse(header: bytes) -> list[Any]:
    tree: list[Any] = json.loads(header)
    return tree


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of the tensor in row-major order, without a copy where it is contiguous."""
    if not tensor.numel():
        return memoryview(b"")
    rows = tensor.detach().contiguous()
    array = rows.reshape(-1).view(torch.uint8).numpy() if rows.dtype == torch.bfloat16 else rows.numpy()
    return array.data.cast("B")


def _describe(value: Any, pieces: list[memoryview], offset: int) -> tuple[list[Any], int]:
    """The tree of ``value`` whose first tensor byte is at or after ``offset``, and the offset behind its last."""
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value, pieces, offset)
    if isinstance(value, (tuple, list)):
        items = []
        for item in value:
            tree, offset = _describe(item, pieces, offset)
            items.append(tree)
        return ["l", items], offset
    if isinstance(value, dict):
        entries = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is no string")
            entries[key], offset = _describe(item, pieces, offset)
        return ["d", entries], offset
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["j", value], offset
    raise TypeError(f"{type(value).__name__} cannot be sent; send tensors, tuples, dicts, numbers or strings")


def _describe_tensor(tensor: torch.Tensor, pieces: list[memoryview], offset: int) -> tuple[list[Any], int]:
    if tensor.dtype not in _NAMES:
        raise TypeError(f"tensors of {tensor.dtype} cannot be sent")
    if gap := -offset % ALIGNMENT:
        pieces.append(_PADDING[:gap])
        offset += gap
    piece = tensor_bytes(tensor)
    pieces.append(piece)
    return ["t", [_NAMES[tensor.dtype], list(tensor.shape), offset]], offset + piece.nbytes


def _build(tree: list[Any], body: bytearray) -> Any:
    tag, content = tree
    if tag == "t":
        name, shape, offset = content
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=_DTYPES[name])
        if name == "bfloat16":
            return torch.frombuffer(body, dtype=torch.bfloat16, count=count, offset=offset).view(shape)
        return torch.from_numpy(np.frombuffer(body, dtype=name, count=count, offset=offset).reshape(shape))
    if tag == "l":
        return tuple(_build(item, body) for item in content)
    if tag == "d":
        return {key: _build(item, body) for key, item in content.items()}
    if tag == "j":
        return content
    raise ValueError(f"unknown tag {tag!r} in a header")
