"""One night at a time for each cluster: an flock, which ends with the processes that hold it, however they end.

``bamboo run`` inherits it from its night: as long as it lives, even with its night killed, no other night begins.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bamboo_cli import paths

PATIENCE_S = 1.0
"""Commands that look whether the lock is free hold it for an instant."""


def path_of(cluster: str) -> Path:
    return paths.cron_dir() / f"{cluster}.lock"


@contextmanager
def held(cluster: str) -> Iterator[int | None]:
    """The open file, for who may inherit it; None: another night has it. Raises OSError."""
    path_of(cluster).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path_of(cluster), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor if _try_for_a_while(descriptor) else None
    finally:
        os.close(descriptor)


def is_held(cluster: str) -> bool:
    try:
        descriptor = os.open(path_of(cluster), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try(descriptor)
    finally:
        os.close(descriptor)


def _try_for_a_while(descriptor: int) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not (got := _try(descriptor)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return got


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
