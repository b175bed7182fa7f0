"""Frames leave a device of its own in order, and not before their bytes are there."""

import threading
from queue import SimpleQueue
from typing import Any

import pytest
from bamboo_trainer.device import Device, HostCopy
from bamboo_trainer.frames import Datum, FetchLayer, Frame, Update
from bamboo_trainer.outbox import Outbox
from bamboo_trainer.plan import StepSummary, WorkerId
from bamboo_trainer.schedule import Key

from tests.waiting import wait_until

A, B = WorkerId("n1/1"), WorkerId("n2/1")


class SlowDevice(Device):
    """``ready`` lets go of one copy after the other, by what is copied. Numbers stand for tensors."""

    apart = True

    def __init__(self) -> None:
        self.ready: dict[int, threading.Event] = {}
        self.started: list[int] = []

    def start_to_host(self, value: Any) -> HostCopy:
        self.started.append(value)
        ready = self.ready.setdefault(value, threading.Event())
        return HostCopy(f"{value} on the host", lambda: assert_true(ready.wait(30)))


def assert_true(arrived: bool) -> None:
    assert arrived


def datum(value: Any) -> Datum:
    return Datum(generation=1, step=0, key=Key("F", 0, 1, 2), value=value)


@pytest.fixture
def device() -> SlowDevice:
    return SlowDevice()


def test_a_frame_waits_for_its_bytes_and_all_later_ones_wait_behind_it(device: SlowDevice) -> None:
    sent: SimpleQueue[tuple[WorkerId, Frame]] = SimpleQueue()
    outbox = Outbox(device, lambda peer, frame: sent.put((peer, frame)), print)
    fetch = FetchLayer(generation=1, layer=3)
    outbox.send(A, datum(1))
    outbox.send(A, fetch)
    outbox.send(B, datum(2))
    device.ready[2].set()
    assert sent.empty()
    device.ready[1].set()
    outbox.close()
    assert [sent.get_nowait() for _ in range(3)] == [
        (A, datum("1 on the host")),
        (A, fetch),
        (B, datum("2 on the host")),
    ]


def test_what_goes_to_several_peers_is_copied_once(device: SlowDevice) -> None:
    sent: SimpleQueue[tuple[WorkerId, Frame]] = SimpleQueue()
    outbox = Outbox(device, lambda peer, frame: sent.put((peer, frame)), print)
    outbox.send(A, datum(1))
    outbox.send(B, datum(1))
    outbox.send(B, datum(2))
    assert device.started == [1, 2]
    for ready in device.ready.values():
        ready.set()
    outbox.close()
    assert sent.qsize() == 3


def test_each_chunk_of_an_update_is_waited_for(device: SlowDevice) -> None:
    sent: SimpleQueue[Frame] = SimpleQueue()
    outbox = Outbox(device, lambda peer, frame: sent.put(frame), print)
    summary = StepSummary(step=0, losses=(), square_norms=())
    outbox.send(A, Update(generation=1, layer=0, summary=summary, sums={0: [1, 2], 5: [3]}))
    for value in (1, 3):
        device.ready[value].set()
    assert sent.empty()
    device.ready[2].set()
    outbox.close()
    update = sent.get_nowait()
    assert isinstance(update, Update)
    assert update.sums == {0: ["1 on the host", "2 on the host"], 5: ["3 on the host"]}


def test_a_copy_that_fails_is_told_and_nothing_leaves_any_more(device: SlowDevice) -> None:
    sent: list[Frame] = []
    failures: list[Exception] = []

    class Failing(SlowDevice):
        def start_to_host(self, value: Any) -> HostCopy:
            def fail() -> None:
                raise RuntimeError("the bus is gone")

            return HostCopy(value, fail)

    outbox = Outbox(Failing(), lambda peer, frame: sent.append(frame), failures.append)
    outbox.send(A, datum(1))
    outbox.send(A, FetchLayer(generation=1, layer=3))
    wait_until(lambda: bool(failures), "the failure to be told")
    outbox.close()
    assert [str(error) for error in failures] == ["the bus is gone"]
    assert not sent
