"""SIGTERM and SIGHUP as an exception, for commands that have something to give back before they end."""

import os
import signal
import sys
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


def _let_go_of(terminals: list[int]) -> None:
    """Writing to a terminal that is gone is an error, and would keep us from giving things back."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in terminals:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
