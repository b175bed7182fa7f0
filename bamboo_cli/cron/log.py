"""What a night says, line by line with the time. A disk that is full costs lines of it, and nothing else."""

import logging
import os
import threading
from collections import deque
from logging.handlers import RotatingFileHandler
from pathlib import Path

MAX_BYTES = 5_000_000
KEPT = 9
"""Earlier logs: ``log.1`` is the newest of them."""
TAIL_LINES = 20


class _Tolerant(RotatingFileHandler):
    """Opened at the first line; counts what could not be written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MAX_BYTES, backupCount=KEPT, encoding="utf-8", errors="replace", delay=True)
        self.num_lost = 0
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))

    def handleError(self, record: logging.LogRecord) -> None:
        self.num_lost += 1

    def _open(self):  # type: ignore[no-untyped-def]
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "a", encoding=self.encoding, errors=self.errors)


class NightLog:
    """A log of its own for each night. Lines may come from several threads."""

    def __init__(self, path: Path) -> None:
        self._handler = _Tolerant(path)
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._lock = threading.Lock()
        if path.is_file():
            try:
                self._handler.doRollover()
            except OSError:
                self._handler.num_lost += 1

    def line(self, text: str) -> None:
        with self._lock:
            self._tail.append(text)
            self._handler.handle(logging.LogRecord("night", logging.INFO, "", 0, text, None, None))

    @property
    def num_lost(self) -> int:
        """Lines that could not be written."""
        return self._handler.num_lost

    @property
    def tail(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._tail)

    def close(self) -> None:
        try:
            self._handler.close()
        except OSError:
            self._handler.num_lost += 1
