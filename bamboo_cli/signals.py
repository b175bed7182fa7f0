"""SIGTERM and SIGHUP as an exception, for commands that have something to give back before they end; and Ctrl-C where
what is under way must not be broken."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ECHO_S = 2.0
"""The same signal again within so long is the same wish: `timeout` sends it to the command and to its group."""


class Terminated(BaseException):
    """Not an Exception, as KeyboardInterrupt is none: nothing that mends errors may swallow it."""

    def __init__(self, number: int) -> None:
        self.name = signal.Signals(number).name
        self.exit_code = 128 + number
        super().__init__(self.name)


@contextmanager
def terminable() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP raise ``Terminated``. One that is ignored (as under `nohup`) stays so."""
    terminals = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]
    raised_at: float | None = None

    def end(number: int, _: FrameType | None) -> None:
        nonlocal raised_at
        if number == signal.SIGHUP:
            _let_go_of(terminals)
        now = time.monotonic()
        if raised_at is None or now - raised_at > ECHO_S:
            raised_at = now
            raise Terminated(number)

    heard = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


@contextmanager
def unbroken() -> Iterator[None]:
    """Within, Ctrl-C waits for the end, and raises KeyboardInterrupt there; a second one does not wait.

    In mid-work it could come where Python drops exceptions (weak references, ``__del__``), and nothing would end;
    or where SQLAlchemy puts a connection back, which then complains.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield  # within another one, or where it is nobody's Ctrl-C
        return
    pressed = 0

    def hear(_: int, __: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _let_go_of(terminals: list[int]) -> None:
    """Writing to a terminal that is gone is an error, and would keep us from giving things back."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in terminals:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
