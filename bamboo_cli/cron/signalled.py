"""Signals that are to end a night, given on to what it runs."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NUMBERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@contextmanager
def forwarded(to: Callable[[signal.Signals], None]) -> Iterator[None]:
    """SIGINT as SIGTERM: nobody is there to look on at a run that is detached from. One that is ignored stays so."""

    def pass_on(number: int, _: object) -> None:
        to(signal.SIGTERM if number == signal.SIGINT else signal.Signals(number))

    heard = [number for number in NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in heard}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
