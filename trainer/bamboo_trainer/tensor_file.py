"""The safetensors format (header of JSON, then raw bytes), written without gathering the tensors in memory first.

The ``safetensors`` package reads these files; its own writer copies everything while it holds the interpreter, which
would stop training for as long as a checkpoint takes to copy.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from bamboo_trainer.wire import tensor_bytes

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def header(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str]) -> bytes:
    """The first bytes of the file. ``tensors``: dtype and shape by name, in the order in which their bytes follow."""
    entries: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        num_bytes = dtype.itemsize * math.prod(shape)
        entries[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [offset, offset + num_bytes]}
        offset += num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The file. Equal tensors and metadata give equal bytes. Wide dtypes come first, so that each tensor is aligned."""
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    yield header({name: (tensors[name].dtype, tensors[name].shape) for name in names}, metadata)
    for name in names:
        yield tensor_bytes(tensors[name])


def parse(data: bytearray) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata. The tensors share the memory of ``data``. Raises ValueError."""
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        entries = json.loads(data[8:start])
        metadata = entries.pop("__metadata__", {})
        tensors = {name: _tensor(data, start, **entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"not a safetensors file: {error}") from error
    return tensors, metadata


def _tensor(data: bytearray, start: int, *, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    return torch.frombuffer(data, dtype=_DTYPES[dtype], count=count, offset=start + data_offsets[0]).view(shape)
