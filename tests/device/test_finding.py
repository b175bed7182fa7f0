"""Which device a worker takes, and what it says when that fails it."""

import threading
from collections import namedtuple
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from bamboo_trainer import control
from bamboo_trainer.control import DeviceWish
from bamboo_trainer.device import CPU, Device, DeviceError, find_device, map_tensors
from bamboo_trainer.loop import CopyFailed, Inbox, WorkerLoop
from bamboo_trainer.plan import WorkerId

from tests.trainer.test_loop import SPEC, BusyExecutor, NoTransport

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU")


def test_a_wish_for_the_cpu_is_met() -> None:
    assert find_device(DeviceWish.CPU) is CPU


@without_gpu
def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_told_to_be_missing() -> None:
    assert find_device(DeviceWish.AUTO) is CPU
    with pytest.raises(DeviceError, match=r"`device: cuda`.*no (CUDA|GPU)"):
        find_device(DeviceWish.CUDA)


def test_on_the_cpu_nothing_is_copied() -> None:
    tensor = torch.ones(3)
    batch = tensor, {"targets": tensor}
    assert CPU.to_device(batch) is batch
    assert CPU.start_to_host(tensor).value is tensor


def test_tensors_are_changed_wherever_they_are() -> None:
    Point = namedtuple("Point", "x y")
    value = (torch.ones(1), [Point(torch.ones(1), 3)], {"a": torch.ones(1), "b": None})
    assert map_tensors(value, lambda tensor: float(tensor + 1)) == (2.0, [Point(2.0, 3)], {"a": 2.0, "b": None})


# --- the loop ---------------------------------------------------------------------------------------------------


class FullDevice(Device):
    name = "a small GPU"
    free_bytes = 7

    def explain_full(self) -> str:
        return "7 bytes are free"


class FullExecutor(BusyExecutor):
    def __init__(self) -> None:
        super().__init__(threading.Event(), threading.Event())

    def perform(self, action: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 8 bytes")


def run_loop(find: Callable[[DeviceWish], Device], *items: Any) -> list[control.FromWorker]:
    """What the worker tells while it takes these, and ends."""
    inbox: Inbox = SimpleQueue()
    told: list[control.FromWorker] = []

    def report(message: control.FromWorker) -> None:
        told.append(message)
        if isinstance(message, control.WorkerFailed):
            inbox.put(control.Exit())

    loop = WorkerLoop(WorkerId("n1/1"), inbox, report, lambda *_: FullExecutor(), find_device=find)
    for item in items:
        inbox.put(item)
    loop.run(NoTransport())
    return told


def test_full_memory_ends_the_run_and_says_where_and_what_helps() -> None:
    prepared, failed = run_loop(lambda wish: FullDevice(), control.Prepare(spec=SPEC))
    assert isinstance(prepared, control.Prepared) and isinstance(failed, control.WorkerFailed)
    assert (prepared.device, prepared.device_bytes) == ("a small GPU", 7)
    assert failed.fault == "out_of_memory"
    assert failed.detail.startswith("0F0: the device's memory is full: 7 bytes are free.")
    assert "microbatch_size" in failed.detail


def test_a_device_that_is_missing_ends_the_run() -> None:
    def find(wish: DeviceWish) -> Device:
        raise DeviceError("there is none")

    (failed,) = run_loop(find, control.Prepare(spec=SPEC))
    assert failed == control.WorkerFailed(fault="device", detail="there is none")


def test_a_copy_that_failed_ends_the_worker() -> None:
    with pytest.raises(RuntimeError, match="the bus is gone"):
        run_loop(lambda wish: CPU, CopyFailed(RuntimeError("the bus is gone")))
