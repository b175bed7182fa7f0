"""Moves tensors from the device to host memory and back, bit for bit: what is kept for the loss of others.

What is moved when, and what cannot be tested without a GPU: docs/host-memory.md.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakSet, ref

import torch
from torch import Tensor, UntypedStorage
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

from bamboo_trainer.compute import Value


class HostMemory:
    """``copies`` False: the device's memory is the host's, and nothing is to be moved."""

    def __init__(self, device: torch.device, *, copies: bool | None = None) -> None:
        """``copies``: as the device has it, unless given."""
        self.device = device
        self.copies = device.type != "cpu" if copies is None else copies
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.storages: WeakSet[StorageAside] = WeakSet()

    @property
    def saved_bytes(self) -> int:
        """Of what autograd saved, as long as its graphs live."""
        return sum(aside.num_bytes for aside in self.storages)

    def to_host(self, tensor: Tensor) -> Tensor:
        """A copy, complete when this returns."""
        return self.empty_like(tensor).copy_(tensor)

    def to_device(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=self.device).copy_(tensor)

    def empty_like(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device="cpu", pin_memory=self.device.type == "cuda")

    def forward(
        self,
        layer: Callable[..., Value],
        inputs: Value,
        *,
        needs_input_gradient: bool,
        left_alone: Iterable[Tensor],
    ) -> tuple[Value, "LayerAside"]:
        """Forward through a layer whose graph keeps nothing on the device but the storages of ``left_alone``."""
        entries: list[_Entry] = []
        if needs_input_gradient:
            entries = [_Entry(part) for part in _parts(inputs)]
            inputs = _like(inputs, [entry.enter(part) for entry, part in zip(entries, _parts(inputs), strict=True)])
        with self._saving(left_alone):
            output = layer(*inputs) if isinstance(inputs, tuple) else layer(inputs)
        return output, LayerAside(output, entries, is_tuple=isinstance(inputs, tuple))

    @contextmanager
    def _saving(self, left_alone: Iterable[Tensor]) -> Iterator[None]:
        """What autograd saves goes to host memory, each storage once. What is saved is held on to until the end, so
        that no address is given out twice; a storage that was changed meanwhile is another one."""
        alone = {tensor.untyped_storage()._cdata for tensor in left_alone}
        saved: dict[tuple[int, int], tuple[UntypedStorage, StorageAside]] = {}

        def pack(tensor: Tensor) -> Tensor | TensorAside:
            storage = tensor.untyped_storage() if self._can_move(tensor) else None
            if storage is None or storage._cdata in alone:
                return tensor
            key = storage._cdata, tensor._version
            if key not in saved:
                saved[key] = storage, StorageAside(self, storage)
            return TensorAside(
                saved[key][1], tensor.dtype, tensor.shape, tuple(tensor.stride()), int(tensor.storage_offset())
            )

        def unpack(packed: Tensor | TensorAside) -> Tensor:
            return packed.fetch() if isinstance(packed, TensorAside) else packed

        with saved_tensors_hooks(pack, unpack):
            yield
        saved.clear()  # the graph holds on to ``pack``

    def _can_move(self, tensor: Tensor) -> bool:
        """Plain ones on the device; a seed of the generator, say, is on the host, and stays."""
        plain = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()
        return plain and tensor.device == self.device and type(tensor) in (Tensor, torch.nn.Parameter)


class StorageAside:
    """The bytes of one storage, in host memory."""

    def __init__(self, host: HostMemory, storage: UntypedStorage) -> None:
        self._host = host
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        self._bytes = host.empty_like(whole)
        self._copied: torch.cuda.Event | None = None
        if host.stream is None:
            self._bytes.copy_(whole)
        else:
            host.stream.wait_stream(torch.cuda.current_stream(host.device))
            with torch.cuda.stream(host.stream):
                self._bytes.copy_(whole, non_blocking=True)
                self._copied = host.stream.record_event()
            whole.record_stream(host.stream)  # not given to others before it is copied
        self._back: ref[Tensor] | None = None
        host.storages.add(self)

    @property
    def num_bytes(self) -> int:
        return self._bytes.numel()

    def fetch(self) -> Tensor:
        """On the device again; views that are wanted at the same time share it."""
        back = self._back() if self._back is not None else None
        if back is None:
            if self._copied is not None:
                torch.cuda.current_stream(self._host.device).wait_event(self._copied)
            back = torch.empty_like(self._bytes, device=self._host.device).copy_(self._bytes, non_blocking=True)
            self._back = ref(back)
        return back


@dataclass(frozen=True, slots=True)
class TensorAside:
    """Where in the storage a saved tensor lies."""

    storage: StorageAside
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def fetch(self) -> Tensor:
        whole = self.storage.fetch()
        tensor = torch.empty(0, dtype=self.dtype, device=whole.device)
        tensor.set_(whole.untyped_storage(), self.offset, self.size, self.stride)
        tensor._keeps = whole  # type: ignore[attr-defined]  # as long as one view lives, others find the storage
        return tensor


class _Entry:
    """The place where a layer's input enters its graph, which takes the gradient and does not hold the input."""

    def __init__(self, value: Tensor) -> None:
        self.gradient: Tensor | None = None
        self._wanted = value.is_floating_point()
        self._shape = torch.empty_like(value, device="meta")
        self._device = value.device

    def enter(self, value: Tensor) -> Tensor:
        if not self._wanted:
            return value
        anchor = torch.empty(0, device=value.device, requires_grad=True)
        return cast(Tensor, _PassOn.apply(value, anchor, self))  # type: ignore[no-untyped-call]

    def result(self) -> Tensor | None:
        """With the strides of the input, as a leaf would have it."""
        if not self._wanted:
            return None
        if self.gradient is None:
            return torch.zeros_like(self._shape, device=self._device)
        same = self.gradient.stride() == self._shape.stride()
        return self.gradient if same else torch.empty_like(self._shape, device=self._device).copy_(self.gradient)


class _PassOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, _anchor: Tensor, entry: _Entry) -> Tensor:
        ctx.entry = entry
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.entry.gradient = gradient
        return None, None, None


class LayerAside:
    """The graph of one layer, without its input and output."""

    def __init__(self, output: Value, entries: list[_Entry], *, is_tuple: bool) -> None:
        self._edges: list[GradientEdge | None] = [
            get_gradient_edge(part) if part.requires_grad else None for part in _parts(output)
        ]
        self._entries = entries
        self._is_tuple = is_tuple

    def backward(self, gradient: Value | None) -> Value | None:
        if gradient is not None:
            pairs = zip(self._edges, _parts(gradient), strict=True)
            used = [(edge, part) for edge, part in pairs if edge is not None and part is not None]
            if used:
                torch.autograd.backward([edge for edge, _ in used], [part for _, part in used])
        if not self._entries:
            return None
        results = tuple(entry.result() for entry in self._entries)
        return results if self._is_tuple else results[0]


def _parts(value: Value) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _like(value: Value, parts: list[Tensor]) -> Value:
    return tuple(parts) if isinstance(value, tuple) else parts[0]
