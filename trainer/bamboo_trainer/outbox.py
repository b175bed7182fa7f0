"""Frames on their way from a device of its own to the transport: each leaves when what it carries is in host memory.

In the order in which they were sent, whoever they are for, since links promise order. See docs/device.md.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from bamboo_trainer.compute import Value
from bamboo_trainer.device import Device, HostCopy
from bamboo_trainer.frames import Frame, with_values
from bamboo_trainer.plan import WorkerId


class Outbox:
    """``send`` never waits. ``failed`` is called, from the outbox's thread, when a copy fails; then nothing leaves."""

    def __init__(
        self, device: Device, send: Callable[[WorkerId, Frame], None], failed: Callable[[Exception], None]
    ) -> None:
        self._device = device
        self._send = send
        self._failed = failed
        self._waiting: SimpleQueue[tuple[WorkerId, Frame, list[HostCopy]] | None] = SimpleQueue()
        self._newest: tuple[Value, HostCopy] = None, HostCopy(None)
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def send(self, peer: WorkerId, frame: Frame) -> None:
        copies: list[HostCopy] = []

        def copy(value: Value) -> Value:
            if value is not self._newest[0]:  # it often goes to several peers, one after the other
                self._newest = value, self._device.start_to_host(value)
            copies.append(self._newest[1])
            return copies[-1].value

        on_host = with_values(frame, copy)
        self._waiting.put((peer, on_host, copies))

    def close(self) -> None:
        """What was sent leaves before."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (sent := self._waiting.get()) is not None:
                peer, frame, copies = sent
                for copy in copies:
                    copy.wait()
                self._send(peer, frame)
        except Exception as error:  # noqa: BLE001 - raised again by the thread that computes
            self._failed(error)
