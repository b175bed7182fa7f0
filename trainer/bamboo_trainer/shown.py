"""What ``/proc`` shows of a process that was forked and not executed: made true.

Others know processes by ``/proc/PID/environ`` (the local cloud finds an instance's so). It shows the memory that exec
filled. Nothing in a newborn points there any more: ``os.environ`` was emptied and filled again: new strings.
(PostgreSQL and setproctitle write into the same place.)
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """What has no room is cut off: see ``room_bytes`` before."""
    arguments_start, arguments_end, start, end = _bounds()
    arguments = b"".join(os.fsencode(word) + b"\0" for word in command)
    for text, first, last in ((arguments, arguments_start, arguments_end), (_block(environment), start, end)):
        ctypes.memmove(first, text[: last - first - 1].ljust(last - first, b"\0"), last - first)


def num_bytes(environment: Mapping[str, str]) -> int:
    return len(_block(environment))


def room_bytes() -> int:
    """For an environment."""
    _, _, start, end = _bounds()
    return end - start


def _block(environment: Mapping[str, str]) -> bytes:
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())


def _bounds() -> tuple[int, int, int, int]:
    """Where this process's arguments and environment were put by exec: starts and ends (proc(5), stat, 48 to 51)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments_start, arguments_end, start, end = (int(field) for field in fields[45:49])
    return arguments_start, arguments_end, start, end
