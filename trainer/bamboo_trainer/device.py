"""Where a worker computes: the CPU here, NVIDIA's GPUs in ``cuda``. See docs/device.md."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bamboo_trainer.control import DeviceWish
from bamboo_trainer.host_memory import HostMemory

FAILURES: tuple[type[Exception], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()
"""The device failed, or was led astray: nothing can be computed in this process any more. torch 2.8 tells it."""
NOT_OF_THE_RECIPE: tuple[type[Exception], ...] = (torch.OutOfMemoryError, *FAILURES)
"""What a layer may raise that is not its own mistake."""


class DeviceError(Exception):
    """The device that the job wishes for is not there."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class HostCopy:
    """``value`` may be read when ``wait``, from any thread, has returned."""

    value: Any
    wait: Callable[[], None] = _nothing


class Device:
    """The CPU. Its memory is the host's, so nothing is copied, and what was called for is done when a call returns.

    Another device overrides all of it. One thread uses it, but for ``HostCopy.wait``.
    """

    torch_device = torch.device("cpu")
    name = "CPU"
    apart = False
    """Its memory is not the host's."""
    free_bytes: int | None = None
    """Of its memory, before the worker put anything there; None: no limit is known."""

    def seed(self, seed: int) -> None:
        """Of all that layers draw from, wherever they draw it."""
        # Not torch.manual_seed: it visits every kind of device and takes 100 µs instead of 1.
        torch.default_generator.manual_seed(seed)

    def to_device(self, value: Any) -> Any:
        """Tensors, and tuples, lists and dicts of them. All else stays as it is."""
        return value

    def start_to_host(self, value: Any) -> HostCopy:
        """As it is when all that was called for is done; the caller does not change it before ``wait_for_copies``."""
        return HostCopy(value)

    def wait_for_copies(self) -> None:
        """What is called for from now on happens after all copies that were started."""

    def synchronize(self) -> None:
        """Returns when all that was called for is done."""

    def host_memory(self) -> HostMemory:
        return HostMemory(self.torch_device)

    def explain_full(self) -> str:
        """Figures for people: how full it is."""
        return "no more memory was to be had"


CPU = Device()


def find_device(wish: DeviceWish) -> Device:
    """Raises DeviceError. Not before the process is forked: it asks the driver."""
    if wish is DeviceWish.CPU:
        return CPU
    if torch.cuda.is_available():
        from bamboo_trainer.cuda import CudaDevice

        return CudaDevice()
    if wish is DeviceWish.CUDA:
        why = (
            "this build of torch has no CUDA: install one that has"
            if torch.version.cuda is None
            else "torch finds no GPU: see whether nvidia-smi lists one, and whether its driver is new enough for CUDA "
            f"{torch.version.cuda}"
        )
        raise DeviceError(f"the job wishes for `device: cuda`, and {why}; `device: auto` takes the CPU where it must")
    return CPU


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with other tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [map_tensors(part, change) for part in value]
    if isinstance(value, tuple):
        parts = [map_tensors(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
