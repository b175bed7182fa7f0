"""NVIDIA's GPUs as a worker's device, by way of torch. Nothing here is called before the worker is forked."""

import os
from typing import Any

import torch
from torch import Tensor

from bamboo_trainer.device import Device, HostCopy, map_tensors

WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


class CudaDevice(Device):
    """The first one that the process sees. Owner and shadow compute equal bits on equal ones."""

    apart = True

    def __init__(self) -> None:
        compute_deterministically()
        self.torch_device = torch.device("cuda", 0)
        torch.cuda.set_device(self.torch_device)
        self.name = torch.cuda.get_device_name(self.torch_device)
        self.free_bytes = int(torch.cuda.mem_get_info(self.torch_device)[0])
        self._generator = torch.cuda.default_generators[0]
        self._copying = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self._generator.manual_seed(seed)

    def to_device(self, value: Any) -> Any:
        return map_tensors(value, lambda tensor: tensor.to(self.torch_device))

    def start_to_host(self, value: Any) -> HostCopy:
        """Page-locked, on a stream of its own."""
        rows = map_tensors(value, Tensor.contiguous)  # on the stream that computes: the copy is one of plain bytes
        self._copying.wait_stream(torch.cuda.current_stream(self.torch_device))
        with torch.cuda.stream(self._copying):
            copied = map_tensors(rows, self._copy)
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(self._copying)
        return HostCopy(copied, done.synchronize)

    def _copy(self, tensor: Tensor) -> Tensor:
        if tensor.device != self.torch_device:
            return tensor
        tensor.record_stream(self._copying)  # its memory is not given to others before it is copied
        return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)

    def wait_for_copies(self) -> None:
        torch.cuda.current_stream(self.torch_device).wait_stream(self._copying)

    def synchronize(self) -> None:
        torch.cuda.current_stream(self.torch_device).synchronize()

    def explain_full(self) -> str:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        mine = torch.cuda.memory_allocated(self.torch_device)
        return (
            f"{self.name} has {total / 1e9:.1f} GB, of which {mine / 1e9:.1f} GB hold this worker's tensors and "
            f"{free / 1e9:.1f} GB are free"
        )


def compute_deterministically() -> None:
    """Before the first CUDA call: cuBLAS reads its variable once. An own value of the variable stays."""
    os.environ.setdefault(WORKSPACE_VARIABLE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs a kernel each
    torch.backends.cudnn.benchmark = False
