"""A device that is written in Python: memory of its own, and the CPU's arithmetic, bit for bit.

torch takes it for an accelerator: ``tensor.device`` is ``other:0``, autograd has a thread for it. Importing this module
changes torch for the whole process, so nothing but processes made for it may import it.
"""

import threading
from typing import Any

import torch
from bamboo_trainer.device import Device, HostCopy, map_tensors
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "other"
CPU = torch.device("cpu")
aten = torch.ops.aten


class OtherTensor(Tensor):
    """``bytes``: the tensor in the device's memory, which nothing but this module touches."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OtherTensor":
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=f"{NAME}:0",
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:
        return f"OtherTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})


def _run(operation, args, kwargs):
    """On the bytes of the tensors. Raises RuntimeError when they are of two memories, as a GPU's kernels do; a number
    in a CPU tensor is taken there too."""
    if operation is aten.copy_.default:
        _inner(args[0]).copy_(_inner(args[1]))
        return args[0]
    if operation is aten._to_copy.default:
        return _to_copy(args[0], kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    strangers = [t for t in tensors if not isinstance(t, OtherTensor) and t.dim() > 0]
    if strangers and len(strangers) < len(tensors):
        raise RuntimeError(f"{operation}: tensors are on {', '.join(str(tensor.device) for tensor in tensors)}")
    device = kwargs.get("device")
    if device is not None:
        kwargs = kwargs | {"device": CPU}
    out = operation(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    there = device is None or torch.device(device).type == NAME
    wrapped = tree_map(lambda part: OtherTensor(part) if isinstance(part, Tensor) and there else part, out)
    return return_and_correct_aliasing(operation, args, kwargs, wrapped)


def _inner(value: Any) -> Any:
    if isinstance(value, OtherTensor):
        return value.inner
    return CPU if isinstance(value, torch.device) else value


def _to_copy(tensor: Tensor, kwargs: dict[str, Any]) -> Tensor:
    device = torch.device(kwargs.get("device") or tensor.device)
    copied = aten._to_copy.default(_inner(tensor).clone(), **{k: v for k, v in kwargs.items() if k != "device"})
    return OtherTensor(copied) if device.type == NAME else copied


_setup_privateuseone_for_python_backend(NAME)
_library = torch.library.Library("_", "IMPL")
_library.fallback(lambda operation, *args, **kwargs: _run(operation, args, kwargs), "PrivateUse1")


class OtherDevice(Device):
    """A copy to the host is made as late as is allowed; until then what is there is poison."""

    apart = True
    name = "a device in Python"
    torch_device = torch.device(NAME, 0)

    def __init__(self) -> None:
        self._started: list[_Copying] = []
        self.num_copies = self.num_late = 0
        """``num_late``: copies that had to be made since what they read was to be changed."""

    def to_device(self, value: Any) -> Any:
        return map_tensors(value, lambda tensor: tensor.to(self.torch_device))

    def start_to_host(self, value: Any) -> HostCopy:
        copying = _Copying()
        self._started.append(copying)
        self.num_copies += 1
        return HostCopy(map_tensors(value, copying.start), copying.finish)

    def wait_for_copies(self) -> None:
        self.num_late += sum(copying.finish() for copying in self._started)
        self._started.clear()


class _Copying:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def start(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, OtherTensor):
            return tensor
        poison = torch.full(tensor.shape, float("nan") if tensor.is_floating_point() else 77, dtype=tensor.dtype)
        self._pairs.append((poison, tensor))
        return poison

    def finish(self) -> bool:
        """False: it was done before."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            for target, source in pairs:
                target.copy_(source)
        return bool(pairs)
