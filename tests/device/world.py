"""The in-memory world on a device with memory of its own: frames leave and arrive as bytes, as between workers."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from bamboo_trainer import framing
from bamboo_trainer.compute import Value
from bamboo_trainer.device import Device, HostCopy
from bamboo_trainer.executor import Executor
from bamboo_trainer.frames import Frame, with_values
from bamboo_trainer.host_memory import HostMemory
from bamboo_trainer.plan import RedundancyMemory, WorkerId
from bamboo_trainer.torch_compute import TorchCompute

from tests.trainer.test_numbers import TorchWorld


@dataclass
class UnderWay:
    """A frame whose bytes are not there yet. They are taken as late as can be: when it is received."""

    frame: Frame
    copies: list[HostCopy] = field(default_factory=list)

    def arrive(self) -> Frame:
        for copy in self.copies:
            copy.wait()
        data = b"".join(framing.encode(self.frame))
        head = framing.HEAD.size
        lengths = framing.decode_head(data[:head])
        facts, header = data[head : head + lengths[0]], data[head + lengths[0] : head + lengths[0] + lengths[1]]
        return framing.decode(facts, header, bytearray(data[head + lengths[0] + lengths[1] :]))


class DeviceExecutor(Executor):
    device: Device

    def receive(self, sender: WorkerId, frame: Frame | UnderWay) -> None:
        if isinstance(frame, UnderWay):
            frame = with_values(frame.arrive(), self.device.to_device)
        super().receive(sender, frame)


def device_world(make_device: Callable[[], Device]) -> Callable[..., TorchWorld]:
    class DeviceWorld(TorchWorld):
        def add_worker(self, worker_id: WorkerId) -> Executor:
            device = make_device()
            aside = self.spec.redundancy_memory is RedundancyMemory.HOST
            host = self.hosts[worker_id] = device.host_memory() if aside else HostMemory(torch.device("cpu"))
            compute = TorchCompute(self.spec, self.recipe, lambda message: None, host, device)

            def send(peer: WorkerId, frame: Frame) -> None:
                if peer in self.executors:
                    under_way = UnderWay(frame)
                    under_way.frame = with_values(frame, lambda value: start(value, under_way))
                    self.links[worker_id, peer].append(under_way)

            def start(value: Value, under_way: UnderWay) -> Value:
                under_way.copies.append(device.start_to_host(value))
                return under_way.copies[-1].value

            self.torch_computes[worker_id] = compute
            executor = DeviceExecutor(
                worker_id, self.spec, compute, send, lambda message: self.reports.append((worker_id, message))
            )
            executor.device = device
            self.executors[worker_id] = executor
            return executor

    return DeviceWorld
