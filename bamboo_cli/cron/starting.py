"""A night that somebody starts and looks on at."""

import signal
from collections.abc import Sequence

from bamboo_cli import output
from bamboo_cli.cron import launcher
from bamboo_cli.cron.entries import Entry
from bamboo_cli.cron.signalled import forwarded


def start_and_wait(entry: Entry, arguments: Sequence[str]) -> int:
    """The night's exit code. Signals are the night's: it stops in order."""
    process = launcher.begin(entry, arguments)

    def give_on(number: signal.Signals) -> None:
        output.note(f"\nthe night is being stopped, with a checkpoint (process {process.pid})")
        process.send_signal(number)

    with forwarded(give_on):
        code = process.wait()
    return code if code >= 0 else 128 - code
