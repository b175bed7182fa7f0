"""A command of Bamboo as a process of the night, its output line by line in the night's log.

It inherits the night's lock. What it says reaches the log through a pipe, so that a full disk does not concern it.
"""

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bamboo_cli.clusters import CRON_VARIABLE

KEPT_LINES = 200
LAST_WORDS_S = 5.0
"""For what is still in the pipe when the command has ended; somebody else may have it open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    exit_code: int
    """128 + n where signal n killed it."""
    lines: tuple[str, ...]
    """The last of what it said."""


class Child:
    def __init__(self, entry_id: str, lock: int, say: Callable[[str], None]) -> None:
        self._entry_id = entry_id
        self._lock = lock
        self._say = say
        self._process: subprocess.Popen[str] | None = None
        self._signal: signal.Signals | None = None

    def stop(self, number: signal.Signals) -> None:
        """The command, if one is there that may be stopped, ends in order. Called by signal handlers."""
        self._signal = number
        if self._process is not None:
            self._process.send_signal(number)

    @property
    def stopped_by(self) -> signal.Signals | None:
        return self._signal

    def run(self, arguments: Sequence[str], *, stoppable: bool) -> Ended:
        """Start ``bamboo ARGUMENTS`` and wait for its end."""
        self._say(f"$ bamboo {' '.join(arguments)}")
        lines: deque[str] = deque(maxlen=KEPT_LINES)
        process = subprocess.Popen(
            [sys.executable, "-m", "bamboo_cli.main", *arguments],
            cwd="/",
            env={**os.environ, CRON_VARIABLE: self._entry_id},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(self._lock,),
            start_new_session=not stoppable,  # whoever ends the night's whole group does not end this
            encoding="utf-8",
            errors="replace",
        )
        pump = threading.Thread(target=self._pump, args=(process, lines), daemon=True)
        pump.start()
        if stoppable:
            self._process = process
            if self._signal is not None:  # it came in between
                process.send_signal(self._signal)
        code = process.wait()
        self._process = None
        pump.join(LAST_WORDS_S)
        return Ended(exit_code=code if code >= 0 else 128 - code, lines=tuple(lines))

    def _pump(self, process: "subprocess.Popen[str]", lines: deque[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                self._say(lines[-1])
