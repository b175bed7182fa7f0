"""One coordinator per cluster: an flock, which the kernel lets go of however the process ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bamboo_cli.errors import StateError

LOCK_FILE = "coordinator.lock"
PATIENCE_S = 1.0
"""Commands that look whether the lock is free hold it for an instant."""


@contextmanager
def held(cluster_dir: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Own the cluster. Raises StateError when another coordinator does, with its process id."""
    descriptor = os.open(cluster_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + patience_s
        while not _try(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                pid = owner(cluster_dir) or "unknown"
                raise StateError(
                    f"{cluster_dir} is in use by another coordinator (process {pid})",
                    next_step="Only one may run; `bamboo status` shows what it does.",
                )
            time.sleep(0.02)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_locked(cluster_dir: Path) -> bool:
    """Whether a coordinator lives. Any number of commands may look at once."""
    try:
        descriptor = os.open(cluster_dir / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def owner(cluster_dir: Path) -> int | None:
    """Process id of the living coordinator; None: there is none."""
    if not is_locked(cluster_dir):
        return None
    text = (cluster_dir / LOCK_FILE).read_text()
    return int(text) if text.isdigit() else None


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
